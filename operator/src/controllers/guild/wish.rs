//! What a guild wishes: its placement, or a cell of its own once it was hot for long enough. Pure.

use cell_crds::{Guild, MoveCause, Reason, Roles};
use cell_plan::intent::Wish;
use cell_plan::promotion::{Budget, Decision, Hotness, Memory, Setting, Thresholds, decide, observe};
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::observe::Seen;
use crate::names::dedicated_cell;
use crate::report::Standing;

/// Promotions of a fleet at once.
const MOST_PROMOTIONS: usize = 2;

/// What this version does not do, and a guild without a fleet.
pub(super) fn refusal(guild: &Guild, seen: &Seen) -> Option<Standing> {
    let unsupported = match (&guild.spec.voice_region, &guild.spec.limits) {
        (Some(_), _) => Some("spec.voiceRegion"),
        (_, Some(_)) => Some("spec.limits"),
        _ => None,
    };
    if let Some(field) = unsupported {
        let message = format!("{field} is not supported yet; unset it");
        return Some(Standing::Stalled(Reason::NotSupported, message));
    }
    if seen.fleet.is_none() {
        let message = "no Fleet in this namespace: create one".to_owned();
        return Some(Standing::Reconciling(Reason::NoFleet, message));
    }
    if guild.spec.guild_id.parse::<i64>().is_err() {
        let message = format!("spec.guildId {} is larger than any guild id", guild.spec.guild_id);
        return Some(Standing::Stalled(Reason::InvalidSpec, message));
    }
    None
}

fn thresholds(guild: &Guild) -> Option<Thresholds> {
    let promotion = guild.spec.promotion.as_ref()?;
    Some(Thresholds {
        sessions_above: promotion.sessions_above.map(i64::from),
        messages_per_second_above: promotion.messages_per_second_above.map(i64::from),
        hold_for_ms: i64::from(promotion.hold_for_seconds) * 1000,
    })
}

/// The guild's heat, remembered in its status between looks.
pub(super) fn heat(guild: &Guild, seen: &Seen) -> Memory {
    let Some(thresholds) = thresholds(guild) else { return Memory::default() };
    let status = guild.status.as_ref();
    let hotness = match status.and_then(|status| status.hotness) {
        Some(cell_crds::Hotness::Hot) => Hotness::Hot,
        Some(cell_crds::Hotness::Warm) => Hotness::Warm,
        _ => Hotness::Cold,
    };
    let since = status.and_then(|status| status.hot_since.as_ref()).map(|since| since.0.as_millisecond());
    observe(Memory { hotness, hot_since_ms: since }, &thresholds, seen.sample, seen.now_ms)
}

/// Where the guild should live.
pub(super) fn wish(guild: &Guild, seen: &Seen, heat: Memory) -> Wish {
    let own = dedicated_cell(&guild.spec.guild_id);
    if let Some(placement) = &guild.spec.placement {
        if let Some(cell) = &placement.cell {
            return Wish::Cell(cell.clone());
        }
        if placement.dedicated.is_some() {
            return Wish::Dedicated(own);
        }
    }
    let Some(thresholds) = thresholds(guild) else { return Wish::Anywhere };
    let auto = guild.spec.promotion.as_ref().is_some_and(|promotion| promotion.auto);
    let there = seen.current.as_deref() == Some(own.as_str());
    let was_promoted =
        guild.status.as_ref().is_some_and(|status| status.placement_reason.as_deref() == Some("Promoted"));
    if there && was_promoted {
        return Wish::Promoted(own);
    }
    // A promotion once decided is seen through although the guild cools meanwhile; one that has ended is not decided anew.
    let ended = seen.finished.iter().any(|one| one.spec.cause == MoveCause::Promotion);
    if auto && was_promoted && !ended {
        return Wish::Promoted(own);
    }
    let setting = Setting {
        dedicated: there,
        paused: seen.paused,
        budget: Budget { running: seen.promotions_running, most: MOST_PROMOTIONS },
    };
    if auto && !ended && decide(heat, &thresholds, &setting, seen.now_ms) == Decision::Promote {
        return Wish::Promoted(own);
    }
    Wish::Anywhere
}

/// The shape of the guild's own cell.
pub(super) fn roles(guild: &Guild, seen: &Seen) -> Roles {
    let own = guild.spec.placement.as_ref().and_then(|placement| placement.dedicated.as_ref()?.template.clone());
    let fleet = seen.fleet.as_ref().and_then(|fleet| fleet.spec.dedicated_template.clone());
    own.or_else(|| fleet.map(|template| template.roles)).unwrap_or_default()
}

/// The name of the Move for a wish: the same wish, in the same generation, has the same name.
pub(super) fn move_name(guild: &Guild, wanted: &Wish) -> String {
    let cause = if matches!(wanted, Wish::Promoted(_)) { "promotion" } else { "placement" };
    let content = format!(
        "{}/{}/{}",
        guild.uid().unwrap_or_default(),
        guild.metadata.generation.unwrap_or_default(),
        wanted.cell().unwrap_or_default()
    );
    let digest = Sha256::digest(content);
    let short: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{cause}-{short}", guild.name_any())
}

#[cfg(test)]
mod tests {
    use cell_crds::{GuildSpec, GuildStatus, Placement, Promotion};
    use cell_plan::promotion::Sample;

    use super::*;

    fn guild() -> Guild {
        let promotion =
            Promotion { auto: true, sessions_above: Some(100), messages_per_second_above: None, hold_for_seconds: 2 };
        let spec = GuildSpec {
            guild_id: "7".into(),
            placement: None,
            promotion: Some(promotion),
            voice_region: None,
            limits: None,
        };
        Guild::new("g-7", spec)
    }

    fn seen(sessions: i64, now_ms: i64) -> Seen {
        Seen {
            fleet: Some(crate::fixtures::fleet()),
            current: Some("shared-1".into()),
            storage_cell: Some("main".into()),
            cells: Vec::new(),
            running: None,
            finished: Vec::new(),
            promotions_running: 0,
            paused: false,
            is_known: true,
            has_load: true,
            sample: Sample { sessions, messages_per_second: 0 },
            now_ms,
        }
    }

    #[test]
    fn a_guild_hot_for_the_hold_time_wishes_a_cell_of_its_own() {
        let mut guild = guild();
        let first = seen(500, 10_000);
        let heat_now = heat(&guild, &first);
        assert_eq!(wish(&guild, &first, heat_now), Wish::Anywhere);
        let hot_since = Some(crate::report::time_of(10_000));
        guild.status =
            Some(GuildStatus { hotness: Some(cell_crds::Hotness::Hot), hot_since, ..GuildStatus::default() });
        let later = seen(500, 12_000);
        assert_eq!(wish(&guild, &later, heat(&guild, &later)), Wish::Promoted("g-7-cell".into()));
        let paused = Seen { paused: true, ..seen(500, 12_000) };
        assert_eq!(wish(&guild, &paused, heat(&guild, &paused)), Wish::Anywhere);
    }

    #[test]
    fn a_promotion_once_decided_is_seen_through_and_not_repeated() {
        let mut guild = guild();
        guild.status = Some(GuildStatus { placement_reason: Some("Promoted".into()), ..GuildStatus::default() });
        let cold = seen(0, 20_000);
        assert_eq!(wish(&guild, &cold, heat(&guild, &cold)), Wish::Promoted("g-7-cell".into()));
    }

    #[test]
    fn a_placement_outranks_heat() {
        let mut guild = guild();
        guild.spec.placement = Some(Placement { cell: Some("b".into()), dedicated: None });
        let hot = seen(500, 0);
        assert_eq!(wish(&guild, &hot, heat(&guild, &hot)), Wish::Cell("b".into()));
    }

    #[test]
    fn the_moves_name_changes_with_the_wish_and_stays_legal() {
        let mut guild = guild();
        guild.metadata.name = Some("g-9223372036854775807".into());
        let one = move_name(&guild, &Wish::Cell("a".into()));
        assert_eq!(one, move_name(&guild, &Wish::Cell("a".into())));
        assert_ne!(one, move_name(&guild, &Wish::Cell("b".into())));
        assert!(one.len() <= 63, "{one}");
    }

    #[test]
    fn what_is_not_built_is_refused_by_field() {
        let mut guild = guild();
        guild.spec.voice_region = Some("eu".into());
        assert!(refusal(&guild, &seen(0, 0)).unwrap().message().contains("spec.voiceRegion"));
    }
}
