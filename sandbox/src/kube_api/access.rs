//! Who may enter: the sandbox's own token, and tokens issued for ServiceAccounts. It decides identity; there is no authorization
//! beyond it, which the reviews say. Tokens never appear in logs or errors.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const PREFIX: &str = "cpsa1.";
/// Longest life of an issued token, in seconds.
pub const MAX_TOKEN_SECONDS: i64 = 48 * 3600;

/// Why the credentials could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("{verb} {path}: {source}", path = path.display())]
    File { verb: &'static str, path: std::path::PathBuf, source: std::io::Error },
    #[error("token in {} is shorter than 32 characters: remove the file to have a new one made", path.display())]
    WeakToken { path: std::path::PathBuf },
    #[error("make certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("prepare TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("certificate in {} cannot be read: remove the file to have a new one made", path.display())]
    BadCertificate { path: std::path::PathBuf },
}

/// Who a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
}

impl User {
    /// As `TokenReview.status.user` shows it.
    pub fn to_json(&self) -> Value {
        json!({"username": self.name, "uid": self.uid, "groups": self.groups})
    }
}

/// What an issued token says.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Claims {
    pub namespace: String,
    pub account: String,
    pub uid: String,
    pub audiences: Vec<String>,
    /// Unix seconds.
    pub expires: i64,
}

/// The keys of the house.
pub struct Access {
    token: String,
    signing_key: [u8; 32],
}

impl Access {
    /// Reads `DIR/token`, or makes it.
    pub fn open(dir: &Path) -> Result<Self, AccessError> {
        let path = dir.join("token");
        let token = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let token = random_token();
                write_private(&path, token.as_bytes())?;
                token
            }
            Err(source) => return Err(AccessError::File { verb: "read", path, source }),
        };
        if token.len() < 32 {
            return Err(AccessError::WeakToken { path });
        }
        Ok(Self::with_token(token))
    }

    /// With a given token, for servers in tests.
    pub fn with_token(token: String) -> Self {
        let signing_key = Sha256::new()
            .chain_update(b"cellplane sandbox service account key\0")
            .chain_update(&token)
            .finalize()
            .into();
        Self { token, signing_key }
    }

    /// The administrator's token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Whose token this is, if anybody's.
    pub fn identify(&self, token: &str, now: Timestamp) -> Option<(User, Vec<String>)> {
        if same(token.as_bytes(), self.token.as_bytes()) {
            let groups = vec!["system:masters".into(), "system:authenticated".into()];
            return Some((User { name: "cellplane-admin".into(), uid: String::new(), groups }, Vec::new()));
        }
        let claims = self.verify(token, now)?;
        let user = User {
            name: format!("system:serviceaccount:{}:{}", claims.namespace, claims.account),
            uid: claims.uid,
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{}", claims.namespace),
                "system:authenticated".into(),
            ],
        };
        Some((user, claims.audiences))
    }

    /// Issues a token for a ServiceAccount.
    pub fn issue(&self, claims: &Claims) -> String {
        let body = URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims).unwrap_or_default());
        let mac = URL_SAFE_NO_PAD.encode(hmac(&self.signing_key, body.as_bytes()));
        format!("{PREFIX}{body}.{mac}")
    }

    fn verify(&self, token: &str, now: Timestamp) -> Option<Claims> {
        let (body, mac) = token.strip_prefix(PREFIX)?.split_once('.')?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        if !same(&mac, &hmac(&self.signing_key, body.as_bytes())) {
            return None;
        }
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
        (claims.expires > now.as_second()).then_some(claims)
    }
}

/// Compares without telling where two texts differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0_u8, |diff, (x, y)| diff | (x ^ y)) == 0
}

fn hmac(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    let pad = |byte: u8| -> Vec<u8> { (0..64).map(|i| key.get(i).copied().unwrap_or_default() ^ byte).collect() };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

fn random_token() -> String {
    (0..32).map(|_| format!("{:02x}", rand::random::<u8>())).collect()
}

/// Writes a file only its owner can read, replacing it as a whole.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), AccessError> {
    let fault = |verb: &'static str| {
        let path = path.to_owned();
        move |source| AccessError::File { verb, path, source }
    };
    let temporary = path.with_extension("new");
    let _ = std::fs::remove_file(&temporary);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(fault("create"))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(fault("write"))?;
    std::fs::rename(&temporary, path).map_err(fault("rename"))
}
