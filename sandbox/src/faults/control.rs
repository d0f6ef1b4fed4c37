//! Changing the rules while the proxy runs: GET lists them, POST adds some, DELETE removes one or all. The side of the proxy, and the
//! side of who asks it.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::proxy::{Faults, status};
use super::rule::{Rule, RuleReport};
use crate::kube_api::request::Query;
use crate::server::{ServerError, client};

/// Where the rules are.
pub const PATH: &str = "/sandbox/faults";
const MAX_BODY: usize = 64 * 1024;

/// The rules, with what they did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// In the order in which they are tried.
    pub rules: Vec<RuleReport>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    rules: Vec<String>,
}

/// Answers a request for the rules.
pub(super) async fn answer(faults: &Arc<Faults>, request: Request<Incoming>) -> Response<Body> {
    let outcome = match *request.method() {
        Method::GET => Ok(()),
        Method::POST => add(faults, request).await,
        Method::DELETE => clear(faults, request.uri().query().unwrap_or_default()),
        _ => return status(405, "MethodNotAllowed", "use GET, POST or DELETE"),
    };
    match outcome {
        Err(why) => status(400, "BadRequest", &why),
        Ok(()) => {
            let report = Report { rules: faults.plan.lock().report() };
            Response::new(Body::from(serde_json::to_vec(&report).unwrap_or_default()))
        }
    }
}

async fn add(faults: &Faults, request: Request<Incoming>) -> Result<(), String> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await.map_err(|error| error.to_string())?;
    let wanted: Wanted = serde_json::from_slice(&body.to_bytes()).map_err(|error| error.to_string())?;
    let rules: Result<Vec<Rule>, _> = wanted.rules.iter().map(|text| text.parse::<Rule>()).collect();
    let rules = rules.map_err(|error| error.to_string())?;
    faults.add(rules)
}

fn clear(faults: &Faults, query: &str) -> Result<(), String> {
    let id = Query::parse(query).number("id").map_err(|refusal| refusal.message)?;
    let id = id.and_then(|id| u64::try_from(id).ok());
    if faults.clear(id) == 0 && id.is_some() {
        return Err("there is no such rule".to_owned());
    }
    Ok(())
}

impl Faults {
    /// Adds rules, all or none.
    ///
    /// # Errors
    /// A sentence when there would be too many.
    pub fn add(&self, rules: Vec<Rule>) -> Result<(), String> {
        let mut plan = self.plan.lock();
        if plan.report().len() + rules.len() > super::plan::MAX_RULES {
            return Err(format!("there may be {} rules: clear some", super::plan::MAX_RULES));
        }
        for rule in rules {
            plan.add(rule);
        }
        drop(plan);
        self.changed.send_modify(|version| *version += 1);
        Ok(())
    }

    /// Removes a rule, or all; how many went.
    pub fn clear(&self, id: Option<u64>) -> usize {
        let gone = self.plan.lock().clear(id);
        self.changed.send_modify(|version| *version += 1);
        gone
    }
}

/// Why a running proxy could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("no fault proxy in {0}: start one with `cell-sandbox faults serve`")]
    Absent(String),
    #[error("ask the fault proxy: {0}")]
    Client(#[from] ServerError),
    #[error("ask the fault proxy: {0}")]
    Kube(#[from] kube::Error),
    #[error("ask the fault proxy: {0}")]
    Request(#[from] http::Error),
}

/// What to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// List the rules.
    List,
    /// Add rules.
    Add(Vec<String>),
    /// Remove one, or all.
    Clear(Option<u64>),
}

/// Asks the proxy that keeps itself in `dir`; answers the rules as they are then.
///
/// # Errors
/// [`ControlError`].
pub async fn ask(dir: &Path, what: Ask) -> Result<Report, ControlError> {
    let kubeconfig = dir.join("kubeconfig");
    if !kubeconfig.exists() {
        return Err(ControlError::Absent(dir.display().to_string()));
    }
    let request = match what {
        Ask::List => Request::get(PATH).body(Vec::new())?,
        Ask::Add(rules) => Request::post(PATH).body(serde_json::to_vec(&Wanted { rules }).unwrap_or_default())?,
        Ask::Clear(None) => Request::delete(PATH).body(Vec::new())?,
        Ask::Clear(Some(id)) => Request::delete(format!("{PATH}?id={id}")).body(Vec::new())?,
    };
    Ok(client(&kubeconfig).await?.request(request).await?)
}
