//! Tokens of bots and users: JWTs signed with the fleet's keys. A token says who someone is; whether that user exists is the log's
//! word.

use std::path::Path;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

/// Smallest key accepted, in bytes.
pub const MIN_KEY_BYTES: usize = 32;
/// Longest token looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 1024;

/// Who carries the token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bearer {
    /// An automated client; sends `Bot <token>`.
    Bot,
    /// A person's client.
    User,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    kind: Bearer,
    iat: i64,
}

/// Who a token names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The user's id.
    pub user_id: i64,
    /// Bot or person.
    pub bearer: Bearer,
}

/// Why keys or tokens were refused. Never holds the token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The key file is missing or unreadable.
    #[error("failed to read token key {path}: {source}; mount the Secret named in Fleet.spec.tokenKeysRef there")]
    ReadKey {
        /// The file.
        path: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// A short key can be guessed.
    #[error("token key {0} is shorter than {MIN_KEY_BYTES} bytes")]
    ShortKey(String),
    /// Signing failed.
    #[error("failed to sign token: {0}")]
    Sign(String),
    /// Not one of ours, or signed with a key that has been retired.
    #[error("token is not valid")]
    Invalid,
}

/// The fleet's keys: the current one signs, both verify.
#[derive(Clone)]
pub struct TokenKeys {
    current: Vec<u8>,
    previous: Option<Vec<u8>>,
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKeys(redacted)")
    }
}

impl TokenKeys {
    /// Keys given as bytes.
    ///
    /// # Errors
    /// [`TokenError::ShortKey`].
    pub fn new(current: Vec<u8>, previous: Option<Vec<u8>>) -> Result<Self, TokenError> {
        for (name, key) in [("current", Some(&current)), ("previous", previous.as_ref())] {
            if key.is_some_and(|key| key.len() < MIN_KEY_BYTES) {
                return Err(TokenError::ShortKey(name.to_owned()));
            }
        }
        Ok(Self { current, previous })
    }

    /// Reads `current` and, if there, `previous` from a folder (a mounted Secret).
    ///
    /// # Errors
    /// [`TokenError::ReadKey`], [`TokenError::ShortKey`].
    pub fn read(folder: &Path) -> Result<Self, TokenError> {
        let path = folder.join("current");
        let current =
            std::fs::read(&path).map_err(|source| TokenError::ReadKey { path: path.display().to_string(), source })?;
        Self::new(current, std::fs::read(folder.join("previous")).ok())
    }

    /// Signs a token for a user.
    ///
    /// # Errors
    /// [`TokenError::Sign`].
    pub fn sign(&self, identity: Identity, now_ms: i64) -> Result<String, TokenError> {
        let claims = Claims { sub: identity.user_id.to_string(), kind: identity.bearer, iat: now_ms / 1000 };
        let key = EncodingKey::from_secret(&self.current).map_err(|error| TokenError::Sign(error.to_string()))?;
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key)
            .map_err(|error| TokenError::Sign(error.to_string()))
    }

    /// Who the token names. Accepts the bare token and the `Bot ` and `Bearer ` forms.
    ///
    /// # Errors
    /// [`TokenError::Invalid`].
    pub fn verify(&self, token: &str) -> Result<Identity, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Invalid);
        }
        let token = token.strip_prefix("Bot ").or_else(|| token.strip_prefix("Bearer ")).unwrap_or(token).trim();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        for key in std::iter::once(&self.current).chain(self.previous.as_ref()) {
            let Ok(key) = DecodingKey::from_secret(key) else { continue };
            if let Ok(data) = jsonwebtoken::decode::<Claims>(token, &key, &validation) {
                let user_id = data.claims.sub.parse().map_err(|_| TokenError::Invalid)?;
                return Ok(Identity { user_id, bearer: data.claims.kind });
            }
        }
        Err(TokenError::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(byte: u8) -> TokenKeys {
        TokenKeys::new(vec![byte; 32], None).unwrap()
    }

    #[test]
    fn a_token_names_its_user_in_every_accepted_form() {
        let identity = Identity { user_id: 1 << 60, bearer: Bearer::Bot };
        let token = keys(1).sign(identity, 1_700_000_000_000).unwrap();
        for form in [token.clone(), format!("Bot {token}"), format!("Bearer {token}")] {
            assert_eq!(keys(1).verify(&form).unwrap(), identity);
        }
    }

    #[test]
    fn tokens_of_other_keys_and_garbage_are_refused() {
        let token = keys(1).sign(Identity { user_id: 5, bearer: Bearer::User }, 0).unwrap();
        assert!(keys(2).verify(&token).is_err());
        for garbage in ["", "Bot ", "a.b.c", &"x".repeat(5000), "é"] {
            assert!(keys(1).verify(garbage).is_err());
        }
    }

    #[test]
    fn a_rotated_key_still_verifies_until_it_is_dropped() {
        let token = keys(1).sign(Identity { user_id: 5, bearer: Bearer::User }, 0).unwrap();
        let rotated = TokenKeys::new(vec![2; 32], Some(vec![1; 32])).unwrap();
        assert!(rotated.verify(&token).is_ok());
        assert!(TokenKeys::new(vec![0; 8], None).is_err());
    }
}
