//! The rules that can be switched off one by one, only in tests, to show that the checker catches the absence of each.

/// One switch per rule or half of one. Production code has only [`Protections::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Protections {
    /// Rule 2: a claimant seals what it finds unsealed.
    pub(super) claim_seals: bool,
    /// Rule 3: a claimant goes on from the tail's last number, timestamp and Snowflake.
    pub(super) hand_on: bool,
    /// Rule 3: a segment found whose term is not lower makes a claimant step back.
    pub(super) walk_checks_term: bool,
    /// Rule 3: after opening, the head is read once more: a segment that was dropped meanwhile must not be taken for one that never
    /// was. It also shows a higher term that the walk overlooked.
    pub(super) verify_head: bool,
    /// Rule 2: and the mark of what is retained: a segment dropped by an owner that does not know of the claim leaves the head as it is.
    pub(super) verify_retained: bool,
    /// Rule 3: an owner that rolled reads both before it goes on: what it opened may have come, and gone, before.
    pub(super) verify_roll: bool,
    /// Rule 4: after an unknown outcome the segment is read before anything else is appended.
    pub(super) settle: bool,
    /// Rule 4: what was found is compared by operation id, not by number.
    pub(super) settle_by_operation: bool,
    /// Rule 5: a claimant applies what is behind the cursor.
    pub(super) reapply: bool,
    /// Rule 5: timestamps rise strictly.
    pub(super) strict_timestamps: bool,
    /// Rule 6: judged against the tables and the entries not yet applied.
    pub(super) overlay: bool,
    /// Rule 7: answered only when applied.
    pub(super) answer_after_apply: bool,
    /// Rule 8: a refusal drawn from data is proven by a serial read.
    pub(super) prove_refusals: bool,
    /// Rule 8: what was proposed is never refused.
    pub(super) never_refuse_proposed: bool,
    /// Rule 9: passed and far deadlines are refused.
    pub(super) deadlines: bool,
    /// Rule 9: a claimant loads the dedupe window.
    pub(super) load_window: bool,
    /// Rule 16: the switch raises the term and leaves no appender.
    pub(super) switch_raises_term: bool,
    /// Rule 16: an unknown switch is settled by a serial read of the head.
    pub(super) settle_switch: bool,
    /// Rules 4 and 18: nothing is handed over while an append may still land; the segment under it is sealed first.
    pub(super) settle_before_handover: bool,
    /// Rule 18: a guild's log is opened only from the term the split names.
    pub(super) split_names_term: bool,
    /// Rule 18: the other log's dedupe window is taken over.
    pub(super) inherit_window: bool,
    /// Rule 18: timestamps and Snowflakes start above the other log's.
    pub(super) inherit_timestamps: bool,
    /// Rule 18: a merge seals the guild's last segment before its head.
    pub(super) merge_seals_segment: bool,
    /// Rule 11: the copy's segments carry the shipper's term, and older ones are sealed.
    pub(super) ship_term: bool,
    /// Rule 11: an append to the copy with an unknown outcome is settled by a serial read.
    pub(super) ship_settles: bool,
    /// Rule 11: a shipped entry keeps its timestamp.
    pub(super) ship_timestamps: bool,
    /// Rule 12: a copy starts a dedupe window back, and not after the first unapplied entry.
    pub(super) copy_window: bool,
    /// Rule 13: nothing is cut over before the copy has log, tables and cursors to the end.
    pub(super) cutover_waits: bool,
    /// Rule 13: the origin's last segment is sealed before its head.
    pub(super) cutover_seals_segment: bool,
    /// Rule 14: of two pointers the higher term's holds.
    pub(super) newest_pointer_holds: bool,
    /// Rule 14: a target is claimed above the pointer's term.
    pub(super) claim_above_pointer: bool,
    /// Rule 15: the serving head's term is raised before a copy is released.
    pub(super) release_raises_term: bool,
    /// Rule 15: a released copy is begun anew before it is shipped to again.
    pub(super) released_begins_anew: bool,
}

impl Protections {
    /// Every rule.
    pub(super) const ALL: Self = Self {
        claim_seals: true,
        hand_on: true,
        walk_checks_term: true,
        verify_head: true,
        verify_retained: true,
        verify_roll: true,
        settle: true,
        settle_by_operation: true,
        reapply: true,
        strict_timestamps: true,
        overlay: true,
        answer_after_apply: true,
        prove_refusals: true,
        never_refuse_proposed: true,
        deadlines: true,
        load_window: true,
        switch_raises_term: true,
        settle_switch: true,
        settle_before_handover: true,
        split_names_term: true,
        inherit_window: true,
        inherit_timestamps: true,
        merge_seals_segment: true,
        ship_term: true,
        ship_settles: true,
        ship_timestamps: true,
        copy_window: true,
        cutover_waits: true,
        cutover_seals_segment: true,
        newest_pointer_holds: true,
        claim_above_pointer: true,
        release_raises_term: true,
        released_begins_anew: true,
    };
}
