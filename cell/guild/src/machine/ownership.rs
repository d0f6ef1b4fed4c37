//! Owning the guild: claiming it by an entry in its log with the next guild term, and stepping back when somebody else claimed it. Whether
//! this node should own it is the directory's matter, not this file's.

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Change, GuildClaimed, Reason, Refusal, Route, SubmitReply, SubmitRequest, submit_reply::Outcome};
use sha2::{Digest, Sha256};

use super::GuildActor;
use super::input::{Effect, Now, Reply, Whereto};

/// How long one claim may take, in milliseconds.
const CLAIM_DEADLINE_MS: i64 = 5_000;
/// How long after a refused claim the next is made, in milliseconds.
const CLAIM_RETRY_MS: u64 = 200;

/// What this node is to the guild.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It follows at most.
    Follower,
    /// Its claim is on its way.
    Claiming { attempt: u64, operation_id: Vec<u8>, guild_term: u64 },
    /// Its claim is committed.
    Owner { guild_term: u64 },
}

impl GuildActor {
    pub(super) fn own(&mut self, now: Now) {
        self.wanted = true;
        self.last_used_ms = now.mono_ms;
        self.retry_load(now);
        self.claim(now);
    }

    /// This node should not own the guild.
    pub(super) fn yield_to(&mut self, route: Option<Route>) {
        self.wanted = false;
        let refusal = self.not_owner(route.clone());
        if self.is_owner() {
            return self.step_back(route.map_or(Whereto::Unknown, Whereto::Route));
        }
        self.refuse_everyone(&refusal);
    }

    pub(super) fn claim(&mut self, now: Now) {
        if self.standing != Standing::Follower || !self.is_loaded() {
            return;
        }
        if self.view.deleted {
            let refusal = Refusal::new(Reason::NotFound, "guild was deleted");
            self.wanted = false;
            return self.refuse_everyone(&refusal);
        }
        self.attempts += 1;
        let guild_term = self.view.guild_term + 1;
        let operation_id = self.claim_operation(guild_term);
        let (guild_id, node) = (self.identity.guild_id, self.identity.node.clone());
        let claimed = GuildClaimed { guild_id, node, guild_term };
        let request = SubmitRequest {
            log: self.log.clone(),
            operation_id: operation_id.clone(),
            deadline_unix_ms: now.unix_ms + CLAIM_DEADLINE_MS,
            guild_term,
            change: Some(Change { kind: Some(Kind::GuildClaimed(claimed)) }),
            ..SubmitRequest::default()
        };
        self.standing = Standing::Claiming { attempt: self.attempts, operation_id, guild_term };
        self.out.push(Effect::Claim { attempt: self.attempts, request: Box::new(request) });
    }

    /// Differs at every try of every process, so that no claim is taken for another.
    fn claim_operation(&self, guild_term: u64) -> Vec<u8> {
        let identity = &self.identity;
        let text = format!(
            "claim {} {} {} {guild_term} {}",
            identity.guild_id, identity.node, identity.incarnation, self.attempts
        );
        Sha256::digest(text)[..16].to_vec()
    }

    pub(super) fn claimed(&mut self, attempt: u64, outcome: SubmitReply, now: Now) {
        let Standing::Claiming { attempt: asked, guild_term, .. } = &self.standing else { return };
        if *asked != attempt {
            return;
        }
        let guild_term = *guild_term;
        match outcome.outcome {
            Some(Outcome::Committed(committed)) => {
                let at = committed.position.unwrap_or_default();
                let elsewhere = !at.log.is_empty() && at.log != self.log && self.log != self.own_log();
                self.become_owner(guild_term, at.number, now);
                if elsewhere {
                    // The guild was split out unseen: the feed of its bucket may never say so.
                    self.log = at.log;
                    self.start_load();
                }
            }
            Some(Outcome::Refusal(refusal)) => self.claim_refused(refusal, now),
            None => self.claim_refused(Refusal::new(Reason::UnknownOutcome, "the data owner's answer is empty"), now),
        }
    }

    fn claim_refused(&mut self, refusal: Refusal, now: Now) {
        self.standing = Standing::Follower;
        self.claim_after_ms = now.mono_ms + CLAIM_RETRY_MS;
        let stale = refusal.why() == Reason::StaleGuildTerm;
        if stale {
            // Somebody claimed in between. The feed will show it; reading anew is sure to.
            self.start_load();
        }
        for ticket in std::mem::take(&mut self.takeovers) {
            self.reply(ticket, Reply::Run(super::runs::run_refused(refusal.clone())));
        }
        if !stale && !refusal.why().is_retryable() {
            self.wanted = false;
            self.refuse_everyone(&refusal);
        }
    }

    pub(super) fn retry_claim(&mut self, now: Now) {
        if self.wanted && self.standing == Standing::Follower && self.is_loaded() && now.mono_ms >= self.claim_after_ms
        {
            self.claim_after_ms = now.mono_ms + CLAIM_RETRY_MS;
            if self.run.is_some() && !self.takeovers.is_empty() {
                return self.claim(now);
            }
            self.out.push(Effect::Reconsider);
        }
    }

    pub(super) fn claim_is_ours(&self, operation: &[u8]) -> Option<u64> {
        match &self.standing {
            Standing::Claiming { operation_id, guild_term, .. } if operation_id == operation => Some(*guild_term),
            _ => None,
        }
    }

    /// The guild term this node owns the guild with.
    pub fn held_guild_term(&self) -> Option<u64> {
        match self.standing {
            Standing::Owner { guild_term } => Some(guild_term),
            _ => None,
        }
    }

    pub(super) fn become_owner(&mut self, guild_term: u64, at: u64, now: Now) {
        if self.view.guild_term > guild_term {
            // A higher claim was seen before this one's answer came.
            self.standing = Standing::Follower;
            self.wanted = false;
            return self.refuse_everyone(&self.not_owner(None));
        }
        self.standing = Standing::Owner { guild_term };
        self.counters.claims += 1;
        self.owned_ms = now.mono_ms;
        self.last_used_ms = now.mono_ms;
        self.memberships.reset();
        self.out.push(Effect::Owned { log: self.log.clone(), at, guild_term, term: self.term });
        self.compare_memberships(at);
        self.know_term(self.log.clone(), self.term);
        for ticket in std::mem::take(&mut self.takeovers) {
            self.reply(ticket, Reply::Run(super::runs::run_done(false)));
        }
        self.serve_all();
        self.pump_mutations(now);
    }

    /// Whether gateways are served: this node owns the guild, and its own claim is applied. So what it says stands after the claim, in the
    /// guild's present stay in its log.
    pub(super) fn is_serving(&self) -> bool {
        self.is_loaded() && self.held_guild_term().is_some_and(|held| self.view.guild_term >= held)
    }

    /// The state was read anew, maybe in another stay of the guild in its log: it is claimed anew before anybody is served from it.
    pub(super) fn give_up_claim(&mut self) {
        self.wanted = self.wanted || self.is_owner();
        self.standing = Standing::Follower;
    }

    /// Somebody else owns the guild: the gateways are told where it went, and nothing more is judged here.
    pub(super) fn step_back(&mut self, to: Whereto) {
        self.standing = Standing::Follower;
        self.wanted = false;
        self.standby_target = None;
        self.counters.step_backs += 1;
        self.move_links(&to);
        let route = match to {
            Whereto::Route(route) => Some(route),
            Whereto::Node(_) | Whereto::Unknown => None,
        };
        let refusal = self.not_owner(route);
        self.refuse_mutations(&refusal);
    }

    /// Refuses all who wait for this node to own the guild.
    pub(super) fn refuse_everyone(&mut self, refusal: &Refusal) {
        self.refuse_waiting_links(refusal, |_| true);
        self.refuse_mutations(refusal);
        for ticket in std::mem::take(&mut self.takeovers) {
            self.reply(ticket, Reply::Run(super::runs::run_refused(refusal.clone())));
        }
    }
}
