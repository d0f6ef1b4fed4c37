//! Which cluster a command talks to, and how errors of its APIs end a command. Reads kubeconfigs, never writes one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cell_crds::Fleet;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::args::Global;
use crate::exit::CommandError;
use crate::sandbox::launch::CONTROL;
use crate::sandbox::state::{DEFAULT_NAME, StateDir};

/// How long a single request may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// A cluster and a namespace in it.
#[derive(Clone)]
pub struct Connection {
    /// The Kubernetes client. It retries nothing by itself.
    pub client: Client,
    /// The fleet's namespace.
    pub namespace: String,
    token: Option<String>,
    /// The token may go over plain http to another machine.
    plaintext: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Where the kubeconfig is read from.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    File(PathBuf),
    Sandbox(PathBuf),
    Kubectl,
}

/// The rule of DESIGN: a flag, the environment, an existing sandbox (`$CELLPLANE_SANDBOX`, else the default one; running or not: a stopped one must not make commands
/// fall through to some other cluster), then what kubectl would use.
fn source(flag: Option<&Path>, environment: bool, context: bool, sandbox: Option<PathBuf>) -> Source {
    match (flag, sandbox) {
        (Some(path), _) => Source::File(path.to_owned()),
        (None, Some(path)) if !environment && !context => Source::Sandbox(path),
        _ => Source::Kubectl,
    }
}

impl Connection {
    /// Connects as the global flags say.
    ///
    /// # Errors
    /// [`CommandError::Refused`] when there is no usable kubeconfig.
    pub async fn open(global: &Global) -> Result<Self, CommandError> {
        let environment = std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
        let named = std::env::var("CELLPLANE_SANDBOX").ok().filter(|name| !name.is_empty());
        let state = StateDir::find(named.as_deref().unwrap_or(DEFAULT_NAME), None).ok().filter(StateDir::exists);
        let sandbox = state.as_ref().map(StateDir::kubeconfig).filter(|path| path.exists());
        let runs = state.as_ref().and_then(|state| state.process(CONTROL)).is_some_and(|control| control.is_alive());
        match source(global.kubeconfig.as_deref(), environment, global.context.is_some(), sandbox) {
            Source::Sandbox(_) if !runs => Err(stopped(named.as_deref().unwrap_or(DEFAULT_NAME))),
            Source::File(path) | Source::Sandbox(path) => Self::from_file(&path, global).await,
            Source::Kubectl => {
                let kubeconfig = Kubeconfig::read().map_err(|error| no_kubeconfig(&error.to_string()))?;
                Self::from_kubeconfig(kubeconfig, global).await
            }
        }
    }

    /// Connects by one kubeconfig file.
    ///
    /// # Errors
    /// [`CommandError::Refused`] when it is not usable.
    pub async fn from_file(path: &Path, global: &Global) -> Result<Self, CommandError> {
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| no_kubeconfig(&error.to_string()))?;
        Self::from_kubeconfig(kubeconfig, global).await
    }

    async fn from_kubeconfig(kubeconfig: Kubeconfig, global: &Global) -> Result<Self, CommandError> {
        let options = KubeConfigOptions { context: global.context.clone(), ..KubeConfigOptions::default() };
        let token = bearer(&kubeconfig, global.context.as_deref());
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| no_kubeconfig(&error.to_string()))?;
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(5));
        let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| no_kubeconfig(&error.to_string()))?;
        Ok(Self { client, namespace, token, plaintext: global.plaintext })
    }

    /// The namespace's one Fleet.
    ///
    /// # Errors
    /// [`CommandError::Refused`] when there is none, or more than one.
    pub async fn fleet(&self) -> Result<Fleet, CommandError> {
        let fleets: Api<Fleet> = Api::namespaced(self.client.clone(), &self.namespace);
        let listed = within(fleets.list(&kube::api::ListParams::default())).await?.items;
        let count = listed.len();
        match listed.into_iter().next() {
            Some(fleet) if count == 1 => Ok(fleet),
            _ => Err(CommandError::refused(
                "--namespace",
                format!("namespace {:?} holds {count} Fleets instead of one", self.namespace),
                "kubectl get fleets --all-namespaces, then give -n NAMESPACE",
            )),
        }
    }

    /// The control-plane API, at the address in the Fleet's status.
    ///
    /// # Errors
    /// [`CommandError::Refused`] when the address or the caller's token is not known, or the token would leave this machine in plain
    /// text without `--plaintext`.
    pub async fn control_plane(&self) -> Result<cell_api::Client, CommandError> {
        let fleet = self.fleet().await?;
        let address = fleet.status.and_then(|status| status.control_plane_address).ok_or_else(|| {
            CommandError::refused(
                "Fleet.status.controlPlaneAddress",
                "not set: no operator serves this fleet's control-plane API yet",
                "cellctl describe fleets",
            )
        })?;
        check_address(&address, self.plaintext)?;
        let token = self.token.as_deref().ok_or_else(|| {
            CommandError::refused(
                "--kubeconfig",
                "its user has no bearer token, which the control-plane API needs",
                "give a kubeconfig with a token (kubectl create token SERVICEACCOUNT)",
            )
        })?;
        cell_api::Client::new(&address, token, REQUEST_DEADLINE).map_err(from_api)
    }
}

/// Whoever may write a Fleet's status, and whoever is on the way, would be given the caller's token otherwise.
fn check_address(address: &str, plaintext: bool) -> Result<(), CommandError> {
    let uri: Option<http::Uri> = address.parse().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
    let ip: Result<std::net::IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
    let encrypted = uri.as_ref().and_then(http::Uri::scheme_str) == Some("https");
    if plaintext || encrypted || host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback()) {
        return Ok(());
    }
    Err(CommandError::refused(
        "Fleet.status.controlPlaneAddress",
        format!("{address} is plain http and not on this machine: your Kubernetes token would be readable on the way"),
        "kubectl port-forward to the operator and its loopback address, or --plaintext where address and network are trusted",
    ))
}

fn stopped(name: &str) -> CommandError {
    CommandError::Waiting {
        stalled: true,
        what: format!("sandbox {name}"),
        why: "it does not run; its state is kept".to_owned(),
        next: "cellctl sandbox up".to_owned(),
    }
}

fn no_kubeconfig(reason: &str) -> CommandError {
    CommandError::refused("--kubeconfig", reason, "cellctl sandbox up, or give --kubeconfig FILE")
}

/// The bearer token of the context's user.
fn bearer(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let value = serde_json::to_value(kubeconfig).ok()?;
    let named = |list: &str, name: &str| value[list].as_array()?.iter().find(|entry| entry["name"] == name).cloned();
    let context = named("contexts", context.or(kubeconfig.current_context.as_deref())?)?;
    let user = named("users", context["context"]["user"].as_str()?)?;
    if let Some(token) = user["user"]["token"].as_str().filter(|token| !token.is_empty()) {
        return Some(token.to_owned());
    }
    let file = user["user"]["tokenFile"].as_str()?;
    std::fs::read_to_string(file).ok().map(|token| token.trim().to_owned())
}

/// Awaits one Kubernetes request, for a bounded time.
///
/// # Errors
/// [`from_kube`]; [`CommandError::TimedOut`].
pub async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, CommandError> {
    match tokio::time::timeout(REQUEST_DEADLINE, request).await {
        Ok(answer) => answer.map_err(from_kube),
        Err(_) => Err(CommandError::TimedOut {
            waited_for: "the Kubernetes API".to_owned(),
            blocked_by: format!("no answer within {} s", REQUEST_DEADLINE.as_secs()),
            next: "cellctl sandbox status, or kubectl get --raw /readyz".to_owned(),
        }),
    }
}

/// How an error of the Kubernetes API ends a command: what it refuses is exit 3, what is missing or broken exit 1.
pub fn from_kube(error: kube::Error) -> CommandError {
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 409 | 422) => {
            let cause = status.details.as_ref().and_then(|details| details.causes.first());
            let field = cause.map(|cause| cause.field.clone()).filter(|field| !field.is_empty());
            CommandError::refused(field.unwrap_or_else(|| status.reason.clone()), status.message.clone(), "")
        }
        kube::Error::Api(status) => CommandError::Failed(anyhow::anyhow!("{} ({})", status.message, status.reason)),
        other => CommandError::Failed(anyhow::anyhow!("failed to reach the Kubernetes API: {}", innermost(&other))),
    }
}

/// How an error of the control-plane API ends a command.
pub fn from_api(error: cell_api::ClientError) -> CommandError {
    match error {
        cell_api::ClientError::Problem(problem) if (400..500).contains(&problem.status) && problem.status != 404 => {
            let (field, reason) = match problem.errors.first() {
                // The detail often is the fault again, with its field in front.
                Some(fault) if problem.detail.contains(&fault.message) => {
                    (fault.field.clone(), format!("{} ({})", fault.message, problem.reason))
                }
                Some(fault) => {
                    (fault.field.clone(), format!("{} ({}: {})", fault.message, problem.reason, problem.detail))
                }
                None => (problem.reason.clone(), problem.detail.clone()),
            };
            CommandError::refused(field, reason, problem.next.unwrap_or_default())
        }
        cell_api::ClientError::Problem(problem) if problem.status == 404 => CommandError::Ended {
            message: format!("{}: {}", problem.reason, problem.detail),
            next: problem.next.unwrap_or_default(),
        },
        cell_api::ClientError::Deadline { .. } => CommandError::TimedOut {
            waited_for: "the control-plane API".to_owned(),
            blocked_by: error.to_string(),
            next: "cellctl status".to_owned(),
        },
        other => CommandError::Failed(anyhow::anyhow!("{other}")),
    }
}

/// The innermost error says what happened; the outer ones only where.
pub fn innermost(error: &dyn std::error::Error) -> String {
    let mut current = error;
    while let Some(source) = current.source() {
        current = source;
    }
    current.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_sandbox_never_lets_commands_fall_through_to_another_cluster() {
        let sandbox = || Some(PathBuf::from("/s"));
        assert_eq!(source(None, false, false, sandbox()), Source::Sandbox("/s".into()));
        assert_eq!(source(None, true, false, sandbox()), Source::Kubectl, "KUBECONFIG is more explicit");
        assert_eq!(source(None, false, true, sandbox()), Source::Kubectl, "--context names one of the user's");
        assert_eq!(source(Some(Path::new("/f")), true, true, sandbox()), Source::File("/f".into()));
        assert_eq!(source(None, false, false, None), Source::Kubectl);
    }

    #[test]
    fn the_bearer_token_is_that_of_the_contexts_user() {
        let kubeconfig = Kubeconfig::from_yaml(
            r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}},
                {"name": "b", "context": {"cluster": "c", "user": "v"}}],
                "users": [{"name": "u", "user": {"token": "t1"}}, {"name": "v", "user": {}}]}"#,
        )
        .unwrap();
        assert_eq!(bearer(&kubeconfig, None), Some("t1".to_owned()));
        assert_eq!(bearer(&kubeconfig, Some("b")), None);
        assert_eq!(bearer(&kubeconfig, Some("x")), None);
    }

    #[test]
    fn the_token_leaves_this_machine_in_plain_text_only_when_told_to() {
        for fine in ["http://127.0.0.1:8443", "http://127.9.0.2:1", "http://[::1]:8443", "http://localhost:8443"] {
            assert!(check_address(fine, false).is_ok(), "{fine}");
        }
        let others = [
            "http://10.0.0.1:8443",
            "http://127.0.0.1@evil.example:80",
            "http://127.0.0.1.evil.example",
            "nonsense",
            "",
        ];
        for other in others {
            let refused = check_address(other, false).unwrap_err();
            assert_eq!(refused.exit().code(), 3, "{other}");
            let report = refused.report();
            assert!(report.contains("controlPlaneAddress") && report.contains("--plaintext"), "{report}");
            assert!(check_address(other, true).is_ok(), "{other}");
        }
    }

    #[test]
    fn a_fault_of_a_field_is_said_once() {
        let problem =
            cell_api::Problem::new(400, "Invalid", "invalid", "guildId: a decimal id").field("guildId", "a decimal id");
        let error = from_api(cell_api::ClientError::Problem(Box::new(problem)));
        assert_eq!(error.report(), "refused: guildId: a decimal id (Invalid)");
    }

    #[test]
    fn what_the_api_refuses_exits_3_and_what_it_lacks_exits_1() {
        let problem = |status| {
            let problem = cell_api::Problem::new(status, "UnitBusy", "refused", "run 7 holds g5").next("cellctl x");
            from_api(cell_api::ClientError::Problem(Box::new(problem)))
        };
        assert_eq!(problem(409).exit().code(), 3);
        assert_eq!(problem(409).report(), "refused: UnitBusy: run 7 holds g5\n  next: cellctl x");
        assert_eq!(problem(404).exit().code(), 1);
        assert_eq!(problem(404).report(), "error: UnitBusy: run 7 holds g5\n  next: cellctl x");
        assert_eq!(problem(503).exit().code(), 1);
        let kube = |code| {
            let status = kube::core::Status {
                code,
                reason: "Invalid".into(),
                message: "m".into(),
                ..kube::core::Status::default()
            };
            from_kube(kube::Error::Api(Box::new(status))).exit().code()
        };
        assert_eq!((kube(422), kube(409), kube(404), kube(500)), (3, 3, 1, 1));
    }
}
