//! Starting, resuming and ending sessions: asks who the user is and which guilds it has, then lets the pure machine decide.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::Unit;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{Reason, User, UserGuildsQuery, UserQuery, query_reply};
use cell_runtime::tokens::Bearer;
use serde_json::{Value, json};

use crate::calls::{CallError, Deadline};
use crate::gateway::Gateway;
use crate::session::id;
use crate::session::limits::StartRefusal;
use crate::session::machine::{Identity, ResumeRefusal, Session};
use crate::session::registry::Slot;
use crate::wire::close::CloseCode;
use crate::wire::event::Event;
use crate::wire::identify::{Identify, Resume, shard_of_guild};
use crate::wire::intents::{Intents, IntentsError};
use crate::wire::objects;

/// Most guilds one shard may have.
const MAX_GUILDS_PER_SHARD: usize = 2500;
/// How often read states are read for one READY while others are told.
const MOST_READS: u32 = 5;
/// How long the user and its guilds may take to be read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an identify did not start a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdentifyRefusal {
    /// Close with this code.
    Close(CloseCode),
    /// Op 9: the session-start budget.
    Budget(StartRefusal),
}

impl IdentifyRefusal {
    /// For metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Close(code) => code.label(),
            Self::Budget(StartRefusal::Daily) => "daily budget",
            Self::Budget(StartRefusal::Concurrency) => "max concurrency",
        }
    }
}

/// A session that has just started, and the guilds it wants.
pub struct Started {
    /// The session, attached to the connection, READY in its buffer.
    pub slot: Arc<Slot>,
    /// Guilds to subscribe it to.
    pub guilds: Vec<i64>,
}

impl Gateway {
    /// Starts a session for a connection.
    ///
    /// # Errors
    /// [`IdentifyRefusal`].
    pub async fn identify(&self, identify: &Identify, connection: u64) -> Result<Started, IdentifyRefusal> {
        let result = self.try_identify(identify, connection).await;
        self.metrics.identified(result.as_ref().err().map_or("Started", |refusal| refusal.label()));
        result
    }

    async fn try_identify(&self, identify: &Identify, connection: u64) -> Result<Started, IdentifyRefusal> {
        let close = IdentifyRefusal::Close;
        let who = self.keys.verify(&identify.token).map_err(|_| close(CloseCode::AuthenticationFailed))?;
        let intents =
            Intents::parse(identify.intents, self.config.limits.privileged_intents).map_err(|error| match error {
                IntentsError::Unknown => close(CloseCode::InvalidIntents),
                IntentsError::Disallowed => close(CloseCode::DisallowedIntents),
            })?;
        let shard_id = identify.shard.map_or(0, |(id, _)| id);
        self.starts.lock().admit(who.user_id, shard_id, self.now_ms()).map_err(IdentifyRefusal::Budget)?;
        let deadline = Deadline::after(READ_TIMEOUT);
        let user = match self.user(who.user_id, deadline).await {
            Ok(Some(user)) => user,
            Ok(None) => return Err(close(CloseCode::AuthenticationFailed)),
            Err(_) => return Err(close(CloseCode::Unknown)),
        };
        let mut guilds = self.user_guilds(who.user_id, deadline).await.map_err(|_| close(CloseCode::Unknown))?;
        if let Some((id, count)) = identify.shard {
            guilds.retain(|guild_id| shard_of_guild(*guild_id, count) == id);
        }
        if guilds.len() > MAX_GUILDS_PER_SHARD && who.bearer == Bearer::Bot {
            return Err(close(CloseCode::ShardingRequired));
        }
        let identity = Identity {
            id: id::new(&self.config.role.member_id, rand::random()),
            user_id: who.user_id,
            bot: who.bearer == Bearer::Bot,
            intents,
            shard: identify.shard,
        };
        let ready = self.ready(&identity, &user, &guilds);
        let Some(slot) = self.open(identity, ready, connection, deadline).await else {
            self.metrics.refused_connections.inc();
            return Err(close(CloseCode::Unknown));
        };
        self.metrics.sessions.set(self.registry.len() as i64);
        // A hint that came while the list was being read found no session yet.
        let recent = self.recent_joins.lock().of_user(who.user_id, self.now_ms());
        let missed: Vec<i64> = recent.into_iter().filter(|id| slot.follows(*id) && !guilds.contains(id)).collect();
        guilds.extend(missed);
        Ok(Started { slot, guilds })
    }

    /// Adds a session whose first event is READY; none when there are too many. What a person has read is read before, and again when
    /// sessions were told of more meanwhile: it would be in neither READY nor an event after it.
    async fn open(
        &self,
        identity: Identity,
        mut ready: Value,
        connection: u64,
        deadline: Deadline,
    ) -> Option<Arc<Slot>> {
        let (user_id, is_person) = (identity.user_id, !identity.bot);
        let mut session = Session::new(identity, self.now_ms());
        session.attach_new(connection);
        for tries in 1.. {
            let told = self.acks_told.lock().of(user_id);
            if is_person && let Some(read_states) = self.read_state_entries(user_id, deadline).await {
                ready["read_state"] = read_states;
            }
            let event = Event::new("READY", &ready);
            let acks_told = self.acks_told.lock();
            if !is_person || acks_told.of(user_id) == told || tries == MOST_READS {
                session.push_initial(event);
                let slot = Slot::new(session);
                return self.registry.add(&slot, self.config.limits.max_sessions).then_some(slot);
            }
        }
        None
    }

    fn ready(&self, identity: &Identity, user: &User, guilds: &[i64]) -> Value {
        let unavailable = |id: &i64| json!({ "id": id.to_string(), "unavailable": true });
        let mut ready = json!({
            "v": 10,
            "user": objects::own_user(user),
            "guilds": guilds.iter().map(unavailable).collect::<Vec<_>>(),
            "session_id": identity.id,
            "session_type": "normal",
            "resume_gateway_url": self.config.websocket_url(),
            "application": { "id": user.id.to_string(), "flags": 0 },
            "private_channels": [],
            "presences": [],
            "relationships": [],
            "user_settings": {},
            "guild_join_requests": [],
            "geo_ordered_rtc_regions": [],
            "_trace": [],
        });
        if let Some((shard_id, count)) = identity.shard {
            ready["shard"] = json!([shard_id, count]);
        }
        ready
    }

    /// Resumes a session that this gateway holds.
    ///
    /// # Errors
    /// [`ResumeRefusal`].
    pub fn resume(&self, resume: &Resume, connection: u64) -> Result<Arc<Slot>, ResumeRefusal> {
        let result = self.try_resume(resume, connection);
        self.metrics.resumed(result.as_ref().map(|_| ()).map_err(|refusal| *refusal));
        if let Err(refusal) = &result {
            tracing::info!(reason = refusal.label(), "a resume was refused");
        }
        result
    }

    fn try_resume(&self, resume: &Resume, connection: u64) -> Result<Arc<Slot>, ResumeRefusal> {
        let who = self.keys.verify(&resume.token).map_err(|_| ResumeRefusal::OtherUser)?;
        let slot = self.registry.get(&resume.session_id).ok_or(ResumeRefusal::Unknown)?;
        let resumed = Event::new("RESUMED", &json!({ "_trace": [] }));
        slot.machine.lock().resume(who.user_id, resume.sequence, connection, resumed)?;
        // Both wake: the replaced connection, to close; the new one finds its events by itself.
        slot.wake.notify_waiters();
        slot.wake.notify_one();
        Ok(slot)
    }

    /// Whether a token is valid at all: a resume with a bad one is an authentication failure, not a lost session.
    pub fn is_valid_token(&self, token: &str) -> bool {
        self.keys.verify(token).is_ok()
    }

    /// The user, or none if there is no such user.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn user(&self, user_id: i64, deadline: Deadline) -> Result<Option<User>, CallError> {
        if let Some(user) = self.users.get(user_id) {
            return Ok(Some(user));
        }
        let query = Query::User(UserQuery { user_id });
        match self.calls.query(Unit::bucket(user_id).log(), query, deadline).await {
            Ok(reply) => match reply.answer {
                Some(query_reply::Answer::User(user)) if user.id == user_id => {
                    self.users.learn(&user);
                    Ok(Some(user))
                }
                _ => Ok(None),
            },
            Err(CallError::Refused(refusal)) if refusal.why() == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The user's guilds, rising: its list, and what it joined just now. Each guild's owner has the last word.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn user_guilds(&self, user_id: i64, deadline: Deadline) -> Result<Vec<i64>, CallError> {
        let mut guilds = self.listed_guilds(user_id, deadline).await?;
        guilds.extend(self.recent_joins.lock().of_user(user_id, self.now_ms()));
        guilds.sort_unstable();
        guilds.dedup();
        Ok(guilds)
    }

    async fn listed_guilds(&self, user_id: i64, deadline: Deadline) -> Result<Vec<i64>, CallError> {
        let query = Query::UserGuilds(UserGuildsQuery { user_id });
        match self.calls.query(Unit::bucket(user_id).log(), query, deadline).await {
            Ok(reply) => match reply.answer {
                Some(query_reply::Answer::UserGuilds(found)) => Ok(found.guild_ids),
                _ => Ok(Vec::new()),
            },
            Err(CallError::Refused(refusal)) if refusal.why() == Reason::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// A session has ended: nobody feeds it any more.
    pub fn forget_session(&self, slot: &Slot) {
        self.registry.remove(slot);
        self.hub.unsubscribe_all(slot);
        self.metrics.sessions.set(self.registry.len() as i64);
    }

    /// Forgets sessions that ended or whose lease ran out.
    pub fn sweep_sessions(&self) {
        for slot in self.registry.sweep(self.now_ms(), self.config.limits.session_lease_ms) {
            if let Some(why) = slot.machine.lock().ended() {
                self.metrics.sessions_ended(why);
            }
            self.metrics.buffer_overflows.inc_by(slot.machine.lock().dropped());
            self.hub.unsubscribe_all(&slot);
        }
        self.metrics.sessions.set(self.registry.len() as i64);
    }
}
