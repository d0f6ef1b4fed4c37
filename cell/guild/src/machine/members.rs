//! The members of one guild in order of user id, in chunks shared copy-on-write: a copy for a snapshot costs one pointer, and the
//! first change after it copies one chunk and the list of chunks, never the members. Decides nothing.

use std::sync::Arc;

use cell_proto::v1::Member;

/// A chunk is split in two above this many members.
const CHUNK_LIMIT: usize = 256;

type Slot = (i64, Arc<Member>);

/// An ordered map from user id to member.
#[derive(Clone, Debug, Default)]
pub struct Members {
    chunks: Arc<Vec<Arc<Vec<Slot>>>>,
    count: usize,
}

impl Members {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The member with this user id.
    pub fn get(&self, user_id: i64) -> Option<&Arc<Member>> {
        let chunk = self.chunks.get(self.chunk_of(user_id))?;
        let at = chunk.binary_search_by_key(&user_id, |slot| slot.0).ok()?;
        chunk.get(at).map(|slot| &slot.1)
    }

    /// Puts a member in, and gives back the one it replaces.
    pub fn insert(&mut self, user_id: i64, member: Member) -> Option<Arc<Member>> {
        let index = self.chunk_of(user_id);
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks.is_empty() {
            chunks.push(Arc::default());
        }
        let chunk = Arc::make_mut(&mut chunks[index]);
        match chunk.binary_search_by_key(&user_id, |slot| slot.0) {
            Ok(at) => Some(std::mem::replace(&mut chunk[at].1, Arc::new(member))),
            Err(at) => {
                chunk.insert(at, (user_id, Arc::new(member)));
                if chunk.len() > CHUNK_LIMIT {
                    let upper = chunk.split_off(CHUNK_LIMIT / 2);
                    chunks.insert(index + 1, Arc::new(upper));
                }
                self.count += 1;
                None
            }
        }
    }

    /// Takes a member out.
    pub fn remove(&mut self, user_id: i64) -> Option<Arc<Member>> {
        self.get(user_id)?;
        let index = self.chunk_of(user_id);
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(chunks.get_mut(index)?);
        let at = chunk.binary_search_by_key(&user_id, |slot| slot.0).ok()?;
        let (_, member) = chunk.remove(at);
        if chunk.is_empty() {
            chunks.remove(index);
        }
        self.count -= 1;
        Some(member)
    }

    /// Members with a user id above `after`, in rising order.
    pub fn after(&self, after: i64) -> impl Iterator<Item = &Arc<Member>> {
        let first = self.chunk_of(after);
        self.chunks
            .iter()
            .skip(first)
            .flat_map(|chunk| chunk.iter())
            .filter(move |slot| slot.0 > after)
            .map(|slot| &slot.1)
    }

    /// All members in rising order of user id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|slot| &slot.1)
    }

    /// The index of the chunk where the id is or belongs; 0 when there is none.
    fn chunk_of(&self, user_id: i64) -> usize {
        let starting_at_or_below =
            self.chunks.partition_point(|chunk| chunk.first().is_some_and(|slot| slot.0 <= user_id));
        starting_at_or_below.saturating_sub(1)
    }
}

/// The user id of a member; 0 when the message lacks its user.
pub fn user_id_of(member: &Member) -> i64 {
    member.user.as_ref().map_or(0, |user| user.id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cell_proto::v1::User;
    use proptest::prelude::*;

    use super::*;

    fn member(id: i64, nick: &str) -> Member {
        Member { user: Some(User { id, ..User::default() }), nick: nick.into(), ..Member::default() }
    }

    proptest! {
        #[test]
        fn it_behaves_as_an_ordered_map(steps in prop::collection::vec((0_i64..900, any::<bool>()), 0..4000), after in -1_i64..901) {
            let (mut members, mut model) = (Members::default(), BTreeMap::new());
            for (step, (id, insert)) in steps.into_iter().enumerate() {
                let nick = step.to_string();
                if insert {
                    prop_assert_eq!(members.insert(id, member(id, &nick)).map(|old| old.nick.clone()), model.insert(id, nick));
                } else {
                    prop_assert_eq!(members.remove(id).map(|old| old.nick.clone()), model.remove(&id));
                }
                prop_assert_eq!(members.len(), model.len());
            }
            let all: Vec<_> = members.iter().map(|member| (user_id_of(member), member.nick.clone())).collect();
            prop_assert_eq!(all, model.clone().into_iter().collect::<Vec<_>>());
            let page: Vec<_> = members.after(after).map(|member| user_id_of(member)).collect();
            prop_assert_eq!(page, model.keys().copied().filter(|id| *id > after).collect::<Vec<_>>());
            for id in 0..900 {
                prop_assert_eq!(members.get(id).map(|member| &member.nick), model.get(&id));
            }
        }
    }

    #[test]
    fn a_copy_keeps_what_it_saw() {
        let mut members = Members::default();
        for id in 0..1000 {
            members.insert(id, member(id, "old"));
        }
        let copy = members.clone();
        members.insert(500, member(500, "new"));
        members.remove(501);
        assert_eq!(copy.get(500).unwrap().nick, "old");
        assert!(copy.get(501).is_some());
        assert_eq!((copy.len(), members.len()), (1000, 999));
    }
}
