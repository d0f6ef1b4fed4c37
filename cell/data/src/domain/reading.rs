//! Read states: how far a user has read a channel. They only go forward; what would not is left out, and a command of which nothing is
//! left is refused as done already.

use cell_proto::v1::change::Kind;
use cell_proto::v1::{ReadState, ReadStatesAdvanced, Reason, Refusal};

use super::limits;
use super::state::{Cells, Need, State};
use super::tables::{LAST_READ, READ_STATES, id_key};

fn row(user_id: i64, channel_id: i64) -> Need {
    Need::Row { table: READ_STATES, partition: id_key(user_id), clustering: id_key(channel_id) }
}

pub(super) fn rows(read: &ReadStatesAdvanced) -> impl Iterator<Item = Need> {
    read.states.iter().take(limits::MAX_READ_STATES).map(|state| row(read.user_id, state.channel_id))
}

/// A read state from its row.
pub fn read_state_of(channel_id: i64, cells: &Cells) -> Option<ReadState> {
    let last_message_id = i64::from_be_bytes(cells.get(LAST_READ)?.as_slice().try_into().ok()?);
    Some(ReadState { channel_id, last_message_id })
}

pub(super) fn judge(state: &State, read: &ReadStatesAdvanced, unix_ms: i64) -> Result<Kind, Refusal> {
    limits::read_states(read, unix_ms)?;
    let known = |channel_id: i64| {
        let cells = state.row(&row(read.user_id, channel_id));
        cells.and_then(|cells| read_state_of(channel_id, cells)).map_or(0, |known| known.last_message_id)
    };
    let forward = |state: &&ReadState| state.last_message_id > known(state.channel_id);
    let states: Vec<ReadState> = read.states.iter().filter(forward).copied().collect();
    if states.is_empty() {
        return Err(Refusal::new(Reason::AlreadyExists, "everything was read as far, or further, already"));
    }
    Ok(Kind::ReadStatesAdvanced(ReadStatesAdvanced { user_id: read.user_id, states }))
}
