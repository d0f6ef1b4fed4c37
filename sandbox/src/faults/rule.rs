//! A rule in words: `refuse=409,verb=update,resource=statefulsets,share=0.2,limit=3`. It decides what a rule may say.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The server refuses with this code; it did nothing.
    Refuse(u16),
    /// The server does what was asked and then answers with this code.
    Lose(u16),
    /// The connection is cut before the server hears of the request.
    Cut,
    /// The server does what was asked, then the connection is cut.
    CutAfter,
    /// The request waits so many milliseconds.
    Delay(u64),
    /// Requests and watch events wait while the rule is there.
    Freeze,
    /// A read is answered with an earlier answer to the same question.
    Stale,
    /// A watch event is left out.
    EventDrop,
    /// A watch event comes twice.
    EventDuplicate,
    /// A watch event, and what follows it in its watch, waits so many milliseconds.
    EventDelay(u64),
    /// The connection is cut instead of telling a watch event.
    EventCut,
}

impl Fault {
    /// Whether it happens to watch events rather than to requests.
    pub fn is_of_events(self) -> bool {
        matches!(self, Self::EventDrop | Self::EventDuplicate | Self::EventDelay(_) | Self::EventCut)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refuse(code) => write!(out, "refuse={code}"),
            Self::Lose(code) => write!(out, "lose={code}"),
            Self::Cut => out.write_str("cut"),
            Self::CutAfter => out.write_str("cut-after"),
            Self::Delay(ms) => write!(out, "delay={ms}ms"),
            Self::Freeze => out.write_str("freeze"),
            Self::Stale => out.write_str("stale"),
            Self::EventDrop => out.write_str("event-drop"),
            Self::EventDuplicate => out.write_str("event-duplicate"),
            Self::EventDelay(ms) => write!(out, "event-delay={ms}ms"),
            Self::EventCut => out.write_str("event-cut"),
        }
    }
}

/// One rule: a fault, what it happens to, how often.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What goes wrong.
    pub fault: Fault,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; any when absent.
    pub verb: Option<String>,
    /// API group; `core` is the unnamed one.
    pub group: Option<String>,
    /// Plural of the resource, with `/status` and the like for a subresource.
    pub resource: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
    /// How the client's user agent begins.
    pub agent: Option<String>,
    /// Which share of the matches, above 0 and up to 1.
    pub share: f64,
    /// So many matches are spared first.
    pub after: u64,
    /// How often at most.
    pub limit: Option<u64>,
}

/// Why a rule cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error(
        "fault {0:?} is not known: give refuse=CODE, lose=CODE, cut, cut-after, delay=TIME, freeze, stale, event-drop, event-duplicate, event-delay=TIME or event-cut"
    )]
    Fault(String),
    #[error("code {0:?} must be 409, 429, 500, 503 or 504")]
    Code(String),
    #[error("time {0:?} must be like 200ms or 1.5s, at most an hour")]
    Time(String),
    #[error("verb {0:?} must be get, list, watch, create, update, patch, delete or deletecollection")]
    Verb(String),
    #[error("{0:?} is not known: give verb, group, resource, namespace, name, agent, share, after or limit")]
    Key(String),
    #[error("{0}={1:?} is not valid: share is above 0 and up to 1, after and limit are whole numbers")]
    Number(&'static str, String),
}

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut parts = text.split(',').map(str::trim);
        let fault = fault(parts.next().unwrap_or_default())?;
        let mut rule = Self {
            fault,
            verb: None,
            group: None,
            resource: None,
            namespace: None,
            name: None,
            agent: None,
            share: 1.0,
            after: 0,
            limit: None,
        };
        for part in parts.filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| RuleError::Key(part.to_owned()))?;
            rule.set(key, value)?;
        }
        Ok(rule)
    }
}

impl Rule {
    fn set(&mut self, key: &str, value: &str) -> Result<(), RuleError> {
        let word = Some(value.to_owned());
        let whole = |key: &'static str| value.parse().map_err(|_| RuleError::Number(key, value.to_owned()));
        match key {
            "verb" if VERBS.contains(&value) => self.verb = word,
            "verb" => return Err(RuleError::Verb(value.to_owned())),
            "group" => self.group = Some(if value == "core" { String::new() } else { value.to_owned() }),
            "resource" => self.resource = word,
            "namespace" => self.namespace = word,
            "name" => self.name = word,
            "agent" => self.agent = word,
            "after" => self.after = whole("after")?,
            "limit" => self.limit = Some(whole("limit")?),
            "share" => {
                let share = value.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
                self.share = share.ok_or_else(|| RuleError::Number("share", value.to_owned()))?;
            }
            other => return Err(RuleError::Key(other.to_owned())),
        }
        Ok(())
    }
}

fn fault(text: &str) -> Result<Fault, RuleError> {
    let (name, argument) = text.split_once('=').unwrap_or((text, ""));
    let code = || match argument {
        "409" => Ok(409),
        "429" => Ok(429),
        "500" => Ok(500),
        "503" => Ok(503),
        "504" => Ok(504),
        other => Err(RuleError::Code(other.to_owned())),
    };
    let plain = |fault: Fault| if argument.is_empty() { Ok(fault) } else { Err(RuleError::Fault(text.to_owned())) };
    match name {
        "refuse" => Ok(Fault::Refuse(code()?)),
        "lose" => Ok(Fault::Lose(code()?)),
        "cut" => plain(Fault::Cut),
        "cut-after" => plain(Fault::CutAfter),
        "delay" => Ok(Fault::Delay(time(argument)?)),
        "freeze" => plain(Fault::Freeze),
        "stale" => plain(Fault::Stale),
        "event-drop" => plain(Fault::EventDrop),
        "event-duplicate" => plain(Fault::EventDuplicate),
        "event-delay" => Ok(Fault::EventDelay(time(argument)?)),
        "event-cut" => plain(Fault::EventCut),
        _ => Err(RuleError::Fault(text.to_owned())),
    }
}

/// Milliseconds of `200ms` or `1.5s`.
fn time(text: &str) -> Result<u64, RuleError> {
    let bad = || RuleError::Time(text.to_owned());
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1.0),
        (None, Some(number)) => (number, 1000.0),
        (None, None) => return Err(bad()),
    };
    let ms = number.parse::<f64>().map_err(|_| bad())? * unit;
    // Checked: between 0 and an hour, so the cast is exact enough.
    if (0.0..=3_600_000.0).contains(&ms) { Ok(ms as u64) } else { Err(bad()) }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.fault)?;
        let group = self.group.as_deref().map(|group| if group.is_empty() { "core" } else { group });
        let words = [
            ("verb", self.verb.as_deref()),
            ("group", group),
            ("resource", self.resource.as_deref()),
            ("namespace", self.namespace.as_deref()),
            ("name", self.name.as_deref()),
            ("agent", self.agent.as_deref()),
        ];
        for (key, value) in words {
            if let Some(value) = value {
                write!(out, ",{key}={value}")?;
            }
        }
        if self.share < 1.0 {
            write!(out, ",share={}", self.share)?;
        }
        if self.after > 0 {
            write!(out, ",after={}", self.after)?;
        }
        self.limit.map_or(Ok(()), |limit| write!(out, ",limit={limit}"))
    }
}

/// A rule as people are shown it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// The rule's number.
    pub id: u64,
    /// Its words.
    pub rule: String,
    /// Requests or events it fitted.
    pub matched: u64,
    /// How often it struck.
    pub struck: u64,
}
