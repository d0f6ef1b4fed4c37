//! Session ids: random, URL-safe, and naming the gateway that holds the session, so that a resume can be brought there.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Makes an id for a session held by this gateway.
pub fn new(member_id: &str, random: [u8; 16]) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(member_id), URL_SAFE_NO_PAD.encode(random))
}

/// The member id of the gateway that made the id; `None` when it is not one of ours.
pub fn holder(session_id: &str) -> Option<String> {
    if session_id.len() > 512 {
        return None;
    }
    let (member, random) = session_id.split_once('.')?;
    if random.len() != 22 {
        return None;
    }
    String::from_utf8(URL_SAFE_NO_PAD.decode(member).ok()?).ok().filter(|member| !member.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_holder_and_garbage_names_nobody() {
        let id = new("shared-1-gateway-0", [7; 16]);
        assert_eq!(holder(&id).as_deref(), Some("shared-1-gateway-0"));
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
        for garbage in ["", ".", "abc", "a.b", "é.aaaaaaaaaaaaaaaaaaaaaa", ".aaaaaaaaaaaaaaaaaaaaaa"] {
            assert_eq!(holder(garbage), None, "{garbage}");
        }
        assert_ne!(new("g", [1; 16]), new("g", [2; 16]));
    }
}
