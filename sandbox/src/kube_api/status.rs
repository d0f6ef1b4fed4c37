//! Every refusal of the API as a Kubernetes `Status`: one reason enum decides code and name. It never decides whether to refuse.

use serde_json::{Value, json};

/// Why a request was refused; each reason has one HTTP code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Invalid,
    Expired,
    Timeout,
    TooManyRequests,
    MethodNotAllowed,
    NotAcceptable,
    UnsupportedMediaType,
    RequestEntityTooLarge,
    InternalError,
    ServiceUnavailable,
    NotImplemented,
    /// 500 without a reason: an apply configuration that does not fit the schema, exactly as Kubernetes answers it.
    Untyped,
}

impl Reason {
    /// The reason as it stands in `Status.reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Invalid => "Invalid",
            Self::Expired => "Expired",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::NotImplemented => "NotImplemented",
            Self::Untyped => "",
        }
    }

    /// The HTTP status code that goes with the reason.
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::InternalError | Self::Untyped => 500,
            Self::NotImplemented => 501,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}

/// One entry of `Status.details.causes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable, e.g. `FieldValueInvalid`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// Dotted path of the field, or empty.
    pub field: String,
}

impl Cause {
    fn to_json(&self) -> Value {
        let mut out = json!({"reason": self.reason, "message": self.message});
        if !self.field.is_empty() {
            out["field"] = self.field.as_str().into();
        }
        out
    }
}

/// A refused request.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Decides the HTTP code.
    pub reason: Reason,
    /// For people.
    pub message: String,
    /// What the refusal is about.
    pub details: Box<Details>,
}

/// The object and the faults a refusal is about; boxed, because most results are not refusals.
#[derive(Debug, Clone, Default)]
pub struct Details {
    /// Name of the object concerned, or empty.
    pub name: String,
    /// API group of the object concerned.
    pub group: String,
    /// Kind or plural, as Kubernetes itself fills it in.
    pub kind: String,
    /// What was wrong, one by one.
    pub causes: Vec<Cause>,
    /// Seconds to wait before trying again; also the `Retry-After` header.
    pub retry_after: Option<u32>,
    /// What was sent does not have the form of its kind.
    pub unreadable: bool,
    /// What the caller is to be warned of besides.
    pub warnings: Vec<String>,
}

impl Refusal {
    /// A refusal that concerns no particular object.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), details: Box::default() }
    }

    /// Names the object concerned.
    pub fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let details = &mut self.details;
        (details.group, details.kind, details.name) = (group.to_owned(), kind.to_owned(), name.to_owned());
        self
    }

    /// Adds the list of what was wrong.
    pub fn because(mut self, causes: Vec<Cause>) -> Self {
        self.details.causes = causes;
        self
    }

    /// 400: what was sent does not have the form of its kind.
    pub fn unreadable(message: impl Into<String>) -> Self {
        let mut refusal = Self::new(Reason::BadRequest, message);
        refusal.details.unreadable = true;
        refusal
    }

    /// Warns the caller as well.
    pub fn warning(mut self, warnings: &[String]) -> Self {
        self.details.warnings = warnings.to_vec();
        self
    }

    /// Says when to try again.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.retry_after = Some(seconds);
        self
    }

    /// 400: the request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 404 for an object.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let shown = qualified(group, plural);
        Self::new(Reason::NotFound, format!("{shown} \"{name}\" not found")).about(group, plural, name)
    }

    /// 404 for a path that serves nothing.
    pub fn no_such_path() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource")
    }

    /// 409 for a name that is taken.
    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let shown = qualified(group, plural);
        Self::new(Reason::AlreadyExists, format!("{shown} \"{name}\" already exists")).about(group, plural, name)
    }

    /// 409 for a write on a stale read or a failed precondition.
    pub fn conflict(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let shown = qualified(group, plural);
        Self::new(Reason::Conflict, format!("Operation cannot be fulfilled on {shown} \"{name}\": {why}"))
            .about(group, plural, name)
    }

    /// 422 with the fields at fault.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: Vec<FieldError>) -> Self {
        let joined = match errors.as_slice() {
            [one] => one.to_string(),
            many => format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        };
        let shown = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        Self::new(Reason::Invalid, format!("{shown} \"{name}\" is invalid: {joined}"))
            .about(group, kind, name)
            .because(errors.into_iter().map(FieldError::into_cause).collect())
    }

    /// 422 for an option of a request, as Kubernetes validates them.
    pub fn bad_option(options: &str, error: FieldError) -> Self {
        Self::invalid("meta.k8s.io", options, "", vec![error])
    }

    /// What does not have the form of its kind after a patch is the patch's fault, which Kubernetes calls invalid.
    pub fn of_patch(self, patch: &Value) -> Self {
        match self.details.unreadable {
            true => Self::invalid("", "", "", vec![FieldError::invalid("patch", patch, self.message)]),
            false => self,
        }
    }

    /// 415 for a body in a form that is not read.
    pub fn unsupported(kind: &str) -> Self {
        let message = if kind == "application/strategic-merge-patch+json" {
            "custom resources have no strategic merge patch: use application/merge-patch+json (kubectl patch --type=merge), \
             application/json-patch+json or server-side apply"
                .to_owned()
        } else {
            format!(
                "the body of the request was in an unknown format {kind:?} - accepted media types include: application/json, \
                 application/yaml, application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            )
        };
        Self::new(Reason::UnsupportedMediaType, message)
    }

    /// 410: the revision asked for is gone; the client must list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// 429 with a hint.
    pub fn too_many(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(Reason::TooManyRequests, message).retry_after(retry_after)
    }

    /// 405 for a verb the resource does not have.
    pub fn no_such_verb(verb: &str) -> Self {
        Self::new(Reason::MethodNotAllowed, format!("the server does not allow {verb} on the requested resource"))
    }

    /// 501 for what the sandbox does not offer.
    pub fn not_built(what: &str) -> Self {
        Self::new(Reason::NotImplemented, format!("the sandbox does not offer {what}"))
    }

    /// 500 for a fault of ours.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(Reason::InternalError, format!("Internal error occurred: {message}"))
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        let about = &self.details;
        let mut details = serde_json::Map::new();
        for (key, value) in [("name", &about.name), ("group", &about.group), ("kind", &about.kind)] {
            if !value.is_empty() {
                details.insert(key.into(), value.as_str().into());
            }
        }
        if !about.causes.is_empty() {
            details.insert("causes".into(), about.causes.iter().map(Cause::to_json).collect());
        }
        if let Some(seconds) = about.retry_after {
            details.insert("retryAfterSeconds".into(), seconds.into());
        }
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.reason.code()});
        if self.reason != Reason::Untyped {
            status["reason"] = self.reason.name().into();
        }
        if !details.is_empty() {
            status["details"] = Value::Object(details);
        }
        status
    }
}

fn qualified(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// What is wrong with one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    NotFound,
}

/// One field at fault.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// Dotted path.
    pub field: String,
    /// What is wrong.
    pub fault: Fault,
    /// The value found, shown in the message (shortened).
    pub value: Option<Value>,
    /// The rule broken.
    pub detail: String,
}

impl FieldError {
    /// A fault at a path.
    pub fn new(fault: Fault, field: impl Into<String>, value: Option<&Value>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), fault, value: value.cloned(), detail: detail.into() }
    }

    /// A fault of the value itself.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: impl Into<String>) -> Self {
        Self::new(Fault::Invalid, field, Some(value), detail)
    }

    /// A missing field.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Fault::Required, field, None, detail)
    }

    fn words(&self) -> String {
        let shown = self.value.as_ref().map(shorten).unwrap_or_default();
        match self.fault {
            Fault::Required if self.detail.is_empty() => "Required value".into(),
            Fault::Required => format!("Required value: {}", self.detail),
            Fault::Invalid | Fault::TypeInvalid if self.value.is_none() => format!("Invalid value: {}", self.detail),
            Fault::Invalid | Fault::TypeInvalid => format!("Invalid value: {shown}: {}", self.detail),
            Fault::NotSupported => format!("Unsupported value: {shown}: {}", self.detail),
            Fault::Duplicate => format!("Duplicate value: {shown}"),
            Fault::Forbidden => format!("Forbidden: {}", self.detail),
            Fault::TooLong => format!("Too long: {}", self.detail),
            Fault::TooMany => format!("Too many: {}", self.detail),
            Fault::NotFound => format!("Not found: {shown}"),
        }
    }

    fn into_cause(self) -> Cause {
        let reason = match self.fault {
            Fault::Required => "FieldValueRequired",
            Fault::Invalid => "FieldValueInvalid",
            Fault::TypeInvalid => "FieldValueTypeInvalid",
            Fault::NotSupported => "FieldValueNotSupported",
            Fault::Duplicate => "FieldValueDuplicate",
            Fault::Forbidden => "FieldValueForbidden",
            Fault::TooLong => "FieldValueTooLong",
            Fault::TooMany => "FieldValueTooMany",
            Fault::NotFound => "FieldValueNotFound",
        };
        Cause { reason, message: self.words(), field: shown_field(&self.field).to_owned() }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", shown_field(&self.field), self.words())
    }
}

/// The whole object's field is shown as Kubernetes shows it.
fn shown_field(field: &str) -> &str {
    if field.is_empty() { "<nil>" } else { field }
}

fn shorten(value: &Value) -> String {
    const SHOWN: usize = 120;
    let text = value.to_string();
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN).chain("…".chars()).collect() }
}
