//! Who gets an event: intents, what a session sees of the channels, and whether it may read content. Pure.

use std::sync::Arc;

use super::outgoing::{Audience, Outgoing};
use crate::wire::event::Event;
use crate::wire::intents::{self, Intents};

/// What of an event a session gets, if anything.
pub fn select<'a>(outgoing: &'a Outgoing, user_id: i64, wants: Intents, hidden: &[i64]) -> Option<&'a Arc<Event>> {
    if outgoing.always != user_id && !wants.covers(outgoing.intents) {
        return None;
    }
    if let Audience::Channel(channel_id) = outgoing.audience
        && hidden.binary_search(&channel_id).is_ok()
    {
        return None;
    }
    match &outgoing.bare {
        Some(bare) if !wants.covers(intents::MESSAGE_CONTENT) && !bare.readers.contains(&user_id) => Some(&bare.event),
        _ => Some(&outgoing.event),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::outgoing::Bare;
    use super::*;
    use crate::wire::intents::{GUILD_MESSAGES, MESSAGE_CONTENT, all_privileged};

    fn message(channel_id: i64, readers: Vec<i64>) -> Outgoing {
        Outgoing {
            audience: Audience::Channel(channel_id),
            intents: GUILD_MESSAGES,
            always: 0,
            event: Event::new("FULL", &json!(1)),
            bare: Some(Bare { event: Event::new("BARE", &json!(1)), readers }),
        }
    }

    fn selected(outgoing: &Outgoing, user_id: i64, bits: u32, hidden: &[i64]) -> Option<&'static str> {
        let wants = Intents::parse(i64::from(bits), all_privileged()).unwrap();
        select(outgoing, user_id, wants, hidden).map(|event| event.name())
    }

    #[test]
    fn content_is_for_those_who_asked_the_author_and_the_mentioned() {
        let outgoing = message(5, vec![1, 2]);
        assert_eq!(selected(&outgoing, 9, GUILD_MESSAGES | MESSAGE_CONTENT, &[]), Some("FULL"));
        assert_eq!(selected(&outgoing, 9, GUILD_MESSAGES, &[]), Some("BARE"));
        assert_eq!(selected(&outgoing, 1, GUILD_MESSAGES, &[]), Some("FULL"));
        assert_eq!(selected(&outgoing, 2, GUILD_MESSAGES, &[]), Some("FULL"));
    }

    #[test]
    fn a_hidden_channel_and_a_missing_intent_say_nothing() {
        let outgoing = message(5, vec![1]);
        assert_eq!(selected(&outgoing, 1, GUILD_MESSAGES, &[4, 5]), None);
        assert_eq!(selected(&outgoing, 1, MESSAGE_CONTENT, &[]), None);
        let own = Outgoing { always: 1, ..message(5, vec![]) };
        assert!(selected(&own, 1, 0, &[]).is_some());
        assert!(selected(&own, 2, 0, &[]).is_none());
    }
}
