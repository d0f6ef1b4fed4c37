//! The tables' layout, and the rows an entry writes: a function of the entry alone, so that whoever applies it, whenever, writes the
//! same cells at the same time.

use cell_proto::snowflake::{AHEAD_MS, first_of_ms, message_bucket};
use cell_proto::unit::bucket_of;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    CellWrite, Channel, ChannelDeleted, Entry, Guild, GuildCreated, Invite, Member, MemberPut, Message, MessageEdited,
    MessagesDeleted, Role, RowMutation, User,
};
use prost::Message as _;

/// Messages by channel and ten-day bucket.
pub const MESSAGES: &str = "messages";
/// Everything structural of a guild.
pub const GUILD_OBJECTS: &str = "guild_objects";
/// Users by id.
pub const USERS: &str = "users";
/// A user's guilds.
pub const USER_GUILDS: &str = "user_guilds";
/// Which guild a channel is in, by bucket.
pub const CHANNEL_GUILD: &str = "channel_guild";
/// How far a user has read its channels.
pub const READ_STATES: &str = "read_states";

/// The column that holds the encoded object.
pub const BODY: &str = "body";
/// A guild's policy version.
pub const POLICY: &str = "policy";
/// A guild's term, and the term a split was made from.
pub const TERM: &str = "term";
/// How often an invite was used.
pub const USES: &str = "uses";
/// A message's edited content.
pub const CONTENT: &str = "content";
/// A message's edited embeds.
pub const EMBEDS: &str = "embeds";
/// When a message was edited last.
pub const EDITED: &str = "edited";
/// The last message that was read.
pub const LAST_READ: &str = "last";

/// Above every clustering key of messages.
const ABOVE_ALL: [u8; 9] = [0xff; 9];
/// Ten-day buckets that one purge covers at most: a hundred years.
const MAX_PURGED: usize = 3660;

/// First byte of a clustering key in `guild_objects`. Everything that goes with the guild sorts before [`kind::SPLIT`].
pub mod kind {
    /// Channels.
    pub const CHANNEL: u8 = b'c';
    /// The guild itself.
    pub const GUILD: u8 = b'g';
    /// Invites.
    pub const INVITE: u8 = b'i';
    /// Members.
    pub const MEMBER: u8 = b'm';
    /// Roles.
    pub const ROLE: u8 = b'r';
    /// Present while the guild lives in a log of its own.
    pub const SPLIT: u8 = b's';
    /// The guild's term.
    pub const TERM: u8 = b't';
}

/// The partition of a guild, user or other id.
pub fn id_key(id: i64) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

/// A clustering key in `guild_objects`.
pub fn object_key(kind: u8, id: i64) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend(id.to_be_bytes());
    key
}

/// The clustering key of an invite.
pub fn invite_key(code: &str) -> Vec<u8> {
    let mut key = vec![kind::INVITE];
    key.extend(code.bytes());
    key
}

/// The partition of the messages of a channel in a ten-day bucket.
pub fn message_partition(channel_id: i64, bucket: i64) -> Vec<u8> {
    [channel_id.to_be_bytes(), bucket.to_be_bytes()].concat()
}

/// The partition of `channel_guild` for a channel.
pub fn channel_guild_partition(channel_id: i64) -> Vec<u8> {
    bucket_of(channel_id).to_be_bytes().to_vec()
}

struct Rows {
    timestamp_us: i64,
    out: Vec<RowMutation>,
}

impl Rows {
    fn put(&mut self, table: &str, partition: Vec<u8>, clustering: Vec<u8>, cells: Vec<(&str, Vec<u8>)>) {
        let cells = cells.into_iter().map(|(column, value)| CellWrite { column: column.to_owned(), value }).collect();
        self.out.push(RowMutation {
            table: table.to_owned(),
            partition,
            clustering,
            cells,
            timestamp_us: self.timestamp_us,
            ..RowMutation::default()
        });
    }

    fn object(&mut self, guild_id: i64, key: Vec<u8>, cells: Vec<(&str, Vec<u8>)>) {
        self.put(GUILD_OBJECTS, id_key(guild_id), key, cells);
    }

    fn delete(&mut self, table: &str, partition: Vec<u8>, clustering: Vec<u8>) {
        self.out.push(RowMutation {
            table: table.to_owned(),
            partition,
            clustering,
            delete_row: true,
            timestamp_us: self.timestamp_us,
            ..RowMutation::default()
        });
    }

    fn delete_range(&mut self, table: &str, partition: Vec<u8>, (start, end): (Vec<u8>, Vec<u8>)) {
        self.out.push(RowMutation {
            table: table.to_owned(),
            partition,
            clustering: start,
            range_end: end,
            timestamp_us: self.timestamp_us,
            ..RowMutation::default()
        });
    }

    fn delete_object(&mut self, guild_id: i64, key: Vec<u8>) {
        self.delete(GUILD_OBJECTS, id_key(guild_id), key);
    }

    fn guild(&mut self, guild: &Guild) {
        let body = Guild { policy_version: 0, ..guild.clone() };
        self.object(guild.id, object_key(kind::GUILD, 0), vec![(BODY, body.encode_to_vec())]);
    }

    fn channel(&mut self, channel: &Channel) {
        let cells = vec![(BODY, channel.encode_to_vec())];
        self.object(channel.guild_id, object_key(kind::CHANNEL, channel.id), cells);
        let guild = vec![("guild", channel.guild_id.to_be_bytes().to_vec())];
        self.put(CHANNEL_GUILD, channel_guild_partition(channel.id), id_key(channel.id), guild);
    }

    fn role(&mut self, guild_id: i64, role: &Role) {
        self.object(guild_id, object_key(kind::ROLE, role.id), vec![(BODY, role.encode_to_vec())]);
    }

    fn member(&mut self, guild_id: i64, member: &Member) {
        let user_id = member.user.as_ref().map_or(0, |user| user.id);
        self.object(guild_id, object_key(kind::MEMBER, user_id), vec![(BODY, member.encode_to_vec())]);
    }

    fn message(&mut self, channel_id: i64, message_id: i64, cells: Vec<(&str, Vec<u8>)>) {
        let partition = message_partition(channel_id, message_bucket(message_id));
        self.put(MESSAGES, partition, id_key(message_id), cells);
    }

    fn delete_message(&mut self, channel_id: i64, message_id: i64) {
        self.delete(MESSAGES, message_partition(channel_id, message_bucket(message_id)), id_key(message_id));
    }

    /// A run by one range tombstone, what stands alone by its own.
    fn delete_messages(&mut self, gone: &MessagesDeleted) {
        for range in &gone.ranges {
            let partition = message_partition(gone.channel_id, message_bucket(range.first));
            self.delete_range(MESSAGES, partition, (id_key(range.first), id_key(range.last.saturating_add(1))));
        }
        let in_range = |id: i64| gone.ranges.iter().any(|range| (range.first..=range.last).contains(&id));
        let alone = gone.message_ids.iter().filter(|id| !in_range(**id));
        alone.for_each(|id| self.delete_message(gone.channel_id, *id));
    }

    /// Everything that was ever written into a channel: it began with the channel and ends with this entry.
    fn purge(&mut self, channel_id: i64) {
        let end = message_bucket(first_of_ms(self.timestamp_us / 1000 + AHEAD_MS));
        for bucket in (message_bucket(channel_id).max(0)..=end).take(MAX_PURGED) {
            self.delete_range(MESSAGES, message_partition(channel_id, bucket), (Vec::new(), ABOVE_ALL.to_vec()));
        }
    }

    fn channel_deleted(&mut self, gone: ChannelDeleted) {
        self.delete_object(gone.guild_id, object_key(kind::CHANNEL, gone.channel_id));
        self.delete(CHANNEL_GUILD, channel_guild_partition(gone.channel_id), id_key(gone.channel_id));
        self.purge(gone.channel_id);
    }

    fn guild_created(&mut self, created: &GuildCreated) {
        let Some(guild) = &created.guild else { return };
        self.guild(guild);
        created.roles.iter().for_each(|role| self.role(guild.id, role));
        created.channels.iter().for_each(|channel| self.channel(channel));
        created.owner.iter().for_each(|owner| self.member(guild.id, owner));
    }

    fn member_put(&mut self, put: &MemberPut) {
        put.member.iter().for_each(|member| self.member(put.guild_id, member));
        if !put.invite_code.is_empty() {
            let uses = vec![(USES, put.invite_uses.to_be_bytes().to_vec())];
            self.object(put.guild_id, invite_key(&put.invite_code), uses);
        }
    }

    fn edited(&mut self, edited: &MessageEdited) {
        let mut cells = vec![(EDITED, edited.edited_timestamp_ms.to_be_bytes().to_vec())];
        if !edited.content.is_empty() {
            cells.push((CONTENT, edited.content.clone().into_bytes()));
        }
        if edited.embeds_set {
            cells.push((EMBEDS, edited.embeds_json.clone().into_bytes()));
        }
        self.message(edited.channel_id, edited.message_id, cells);
    }

    fn structure(&mut self, change: &Kind) {
        match change {
            Kind::GuildCreated(created) => self.guild_created(created),
            Kind::GuildUpdated(updated) => updated.guild.iter().for_each(|guild| self.guild(guild)),
            Kind::GuildDeleted(deleted) => {
                let everything = (vec![kind::CHANNEL], vec![kind::SPLIT]);
                self.delete_range(GUILD_OBJECTS, id_key(deleted.guild_id), everything);
            }
            Kind::ChannelPut(put) => put.channel.iter().for_each(|channel| self.channel(channel)),
            Kind::ChannelDeleted(gone) => self.channel_deleted(*gone),
            Kind::RolePut(put) => put.role.iter().for_each(|role| self.role(put.guild_id, role)),
            Kind::RoleDeleted(gone) => self.delete_object(gone.guild_id, object_key(kind::ROLE, gone.role_id)),
            Kind::MemberPut(put) => self.member_put(put),
            Kind::MemberRemoved(gone) => self.delete_object(gone.guild_id, object_key(kind::MEMBER, gone.user_id)),
            Kind::InvitePut(put) => put.invite.iter().for_each(|invite: &Invite| {
                self.object(invite.guild_id, invite_key(&invite.code), vec![(BODY, invite.encode_to_vec())]);
            }),
            Kind::InviteDeleted(gone) => self.delete_object(gone.guild_id, invite_key(&gone.code)),
            _ => {}
        }
    }

    fn other(&mut self, change: &Kind) {
        match change {
            Kind::UserCreated(created) => created.user.iter().for_each(|user: &User| {
                self.put(USERS, id_key(user.id), Vec::new(), vec![(BODY, user.encode_to_vec())]);
            }),
            Kind::UserGuildAdded(added) => {
                let since = vec![("since", self.timestamp_us.to_be_bytes().to_vec())];
                self.put(USER_GUILDS, id_key(added.user_id), id_key(added.guild_id), since);
            }
            Kind::UserGuildRemoved(gone) => self.delete(USER_GUILDS, id_key(gone.user_id), id_key(gone.guild_id)),
            Kind::MessageCreated(created) => created.message.iter().for_each(|message: &Message| {
                self.message(message.channel_id, message.id, vec![(BODY, message.encode_to_vec())]);
            }),
            Kind::MessageEdited(edited) => self.edited(edited),
            Kind::MessageDeleted(gone) => self.delete_message(gone.channel_id, gone.message_id),
            Kind::MessagesDeleted(gone) => self.delete_messages(gone),
            Kind::ReadStatesAdvanced(read) => {
                for state in &read.states {
                    let last = vec![(LAST_READ, state.last_message_id.to_be_bytes().to_vec())];
                    self.put(READ_STATES, id_key(read.user_id), id_key(state.channel_id), last);
                }
            }
            Kind::GuildClaimed(claimed) => {
                let cells = vec![
                    (TERM, claimed.guild_term.to_be_bytes().to_vec()),
                    ("node", claimed.node.clone().into_bytes()),
                ];
                self.object(claimed.guild_id, object_key(kind::TERM, 0), cells);
            }
            Kind::Split(split) => {
                let cells = vec![(TERM, split.log_term.to_be_bytes().to_vec())];
                self.object(split.guild_id, object_key(kind::SPLIT, 0), cells);
            }
            Kind::Merge(merge) => self.delete_object(merge.guild_id, object_key(kind::SPLIT, 0)),
            _ => {}
        }
    }
}

/// Whether an entry deletes many partitions.
pub fn purges(entry: &Entry) -> bool {
    matches!(entry.change.as_ref().and_then(|change| change.kind.as_ref()), Some(Kind::ChannelDeleted(_)))
}

/// The rows an entry writes, each with the entry's timestamp.
pub fn mutations(entry: &Entry) -> Vec<RowMutation> {
    let mut rows = Rows { timestamp_us: entry.timestamp_us, out: Vec::new() };
    let Some(change) = entry.change.as_ref().and_then(|change| change.kind.as_ref()) else { return rows.out };
    rows.structure(change);
    rows.other(change);
    if entry.policy_version != 0
        && let Some(guild_id) = super::guild_of(change)
    {
        let policy = vec![(POLICY, entry.policy_version.to_be_bytes().to_vec())];
        rows.object(guild_id, object_key(kind::GUILD, 0), policy);
    }
    rows.out
}
