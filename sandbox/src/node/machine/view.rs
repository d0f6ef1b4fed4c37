//! What a Pod's machine says of itself: phase, turns, what restarts, what is due when. It changes nothing.

use super::PodMachine;
use super::container::{Container, Exit, State};
use super::plan::RestartPolicy;

impl PodMachine {
    /// True when the Pod ran for longer than its spec allows and was ended for it.
    pub fn expired(&self) -> bool {
        self.expired
    }

    /// Its containers end and none begins any more.
    pub(super) fn ending(&self) -> bool {
        self.expired || self.deleting()
    }

    /// True when the Pod is being deleted.
    pub fn deleting(&self) -> bool {
        self.deleting.is_some()
    }

    /// True when the Pod is to go and no process is left.
    pub fn gone(&self) -> bool {
        self.deleting() && !self.containers.iter().any(Container::alive) && !self.preparing
    }

    /// True when every init container succeeded, or, if it stays beside the main ones, has begun.
    pub fn initialized(&self) -> bool {
        self.containers.iter().filter(|container| container.plan.init).all(is_past)
    }

    /// True when no main container runs or will run again.
    pub(super) fn main_over(&self) -> bool {
        self.initialized()
            && self.containers.iter().filter(|container| !container.plan.init).all(|one| self.final_exit(one).is_some())
    }

    /// Pending, Running, Succeeded or Failed.
    pub fn phase(&self) -> &'static str {
        let init_failed = self.plan.restart == RestartPolicy::Never
            && self.containers.iter().any(|container| {
                container.plan.init
                    && !container.plan.sidecar
                    && matches!(&container.state, State::Ended(exit) if !exit.succeeded())
            });
        if init_failed {
            return "Failed";
        }
        if self.expired && !self.containers.iter().any(Container::alive) {
            return "Failed";
        }
        let main: Vec<_> = self.containers.iter().filter(|container| !container.plan.init).collect();
        let never_ran = |container: &&&Container| {
            container.last.is_none() && matches!(container.state, State::Waiting { .. } | State::Starting)
        };
        if !self.initialized() || main.iter().any(|container| never_ran(&container)) {
            return "Pending";
        }
        let ends: Vec<_> = main.iter().filter_map(|container| self.final_exit(container)).collect();
        let sidecars = self.containers.iter().any(|container| container.plan.sidecar && container.alive());
        if ends.len() < main.len() || sidecars {
            "Running"
        } else if ends.iter().all(|exit| exit.succeeded()) {
            "Succeeded"
        } else {
            "Failed"
        }
    }

    fn final_exit<'a>(&self, container: &'a Container) -> Option<&'a Exit> {
        match &container.state {
            State::Ended(exit) if !self.restarts(container, exit) || self.ending() => Some(exit),
            _ => None,
        }
    }

    pub(super) fn restarts(&self, container: &Container, exit: &Exit) -> bool {
        if container.plan.sidecar {
            return !self.main_over();
        }
        match (container.plan.init, self.plan.restart) {
            (true, RestartPolicy::Never) | (false, RestartPolicy::Never) => false,
            (true, _) | (false, RestartPolicy::OnFailure) => !exit.succeeded(),
            (false, RestartPolicy::Always) => true,
        }
    }

    /// True when it is this container's turn: init containers one by one, then the main ones together. One that stays beside them and
    /// ended has its turn at once.
    pub(super) fn turn(&self, index: usize) -> bool {
        let again = |container: &Container| container.plan.sidecar && is_past(container);
        if self.containers.get(index).is_some_and(again) {
            return !self.main_over();
        }
        let first_init = self.containers.iter().position(|container| container.plan.init && !is_past(container));
        let init = self.containers.get(index).is_some_and(|container| container.plan.init);
        first_init.map_or(!init, |first| first == index)
    }

    /// When [`PodMachine::advance`] must be called next (monotonic milliseconds), if by itself at all.
    pub fn next_ms(&self) -> Option<u64> {
        let prepare = (!self.prepared && !self.preparing && !self.ending()).then_some(self.prepare_at_ms);
        let each = self.containers.iter().enumerate().filter_map(|(index, container)| match &container.state {
            State::Waiting { until_ms, .. } if self.prepared && !self.ending() => self.turn(index).then_some(*until_ms),
            State::Stopping { kill_ms, .. } => *kill_ms,
            State::Running { .. } if !self.ending() => container.next_probe_ms(),
            _ => None,
        });
        each.chain(prepare).min()
    }
}

/// Whether an init container no longer holds back what comes after it.
fn is_past(container: &Container) -> bool {
    match &container.state {
        State::Ended(exit) if !container.plan.sidecar => exit.succeeded(),
        _ => container.plan.sidecar && (container.started || container.last.is_some()),
    }
}
