//! The rules that can be left out, one by one or several together, to see what each prevents. `docs/log.md` has them in words.

use std::fmt;

macro_rules! rules {
    ($($name:ident $number:literal $says:literal;)*) => {
        /// One rule, or the half of one.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Rule {
            $(#[doc = $says] $name,)*
        }

        impl Rule {
            /// Every rule, in the order of `docs/log.md`.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its number in `docs/log.md`, or the word it goes by.
            pub fn number(self) -> &'static str {
                match self {
                    $(Self::$name => $number,)*
                }
            }

            /// What it says.
            pub fn says(self) -> &'static str {
                match self {
                    $(Self::$name => $says,)*
                }
            }
        }
    };
}

rules! {
    CompareWholeRow "1" "a head or a segment's statics change by compare-and-set of the whole row, not of the term alone";
    SealRaisesTerm "1" "sealing a head raises its term";
    ClaimSeals "2" "a claimant seals every segment it finds open";
    VerifyHead "2" "after opening its segment a claimant reads the head once more";
    VerifyRetained "2" "and with it the mark of what is retained";
    VerifyRoll "2" "an owner that rolled does the same before it goes on";
    OpenIfAbsent "3" "a segment is created only if it is absent";
    WalkPastHint "3" "a claimant reads every segment after the hint, not only the hint";
    WalkChecksTerm "3" "a segment found must have a lower term, else the claimant steps back";
    HandOn "3" "the last number and timestamp are handed on when a segment is opened";
    AppendChecksTerm "4" "an append is refused on another term or a seal";
    Settle "4" "an append refused on its number, or of unknown outcome, is settled by a serial read";
    SettleByOperation "4" "settling compares operation ids, not numbers";
    BatchAllOrNone "4" "a batch is one append: all of its entries or none";
    Reapply "5" "a claimant applies what lies behind the applied cursor";
    TimestampsRise "5" "timestamps rise strictly in log order, whatever the clock says";
    BatchTimestampsRise "5" "each entry of a batch has a timestamp of its own";
    JudgeUnapplied "6" "a command is judged against the tables and the entries not yet applied";
    AnswerAfterApply "7" "an operation is answered when it is committed and applied";
    DuplicatesWait "7" "a duplicate is answered when its entry is applied";
    ProveRefusals "8" "a refusal drawn from data is given only by a proven owner";
    NeverRefuseProposed "8" "an operation once proposed is never refused";
    RefusePassedDeadline "9" "an owner refuses a deadline that has passed by its clock";
    RefuseFarDeadline "9" "an owner refuses a deadline more than half the window ahead";
    LoadWindow "9" "a claimant loads the dedupe window before its first append";
    WindowByOwnClock "9" "the window reaches back from the claimant's own clock";
    CopyStartsPointed "10" "the copy's head is created with a pointer to the origin";
    ShipConditionally "11" "shipping appends under a condition on the last number";
    CopyStartsBack "12" "a copy starts a dedupe window back, before the first unapplied entry";
    ShipToTheEnd "13" "everything is shipped and applied before the origin is sealed";
    SealSegmentFirst "13" "the origin's last segment is sealed before its head";
    PointerHoldsTerm "14" "a target is claimed at the pointer's term plus one";
    HigherPointerHolds "14" "of two pointers the one of the higher term holds";
    TargetBelowPointer "14" "a target is claimed through a pointer only while its term is lower";
    RaiseBeforeDrop "15" "the serving head's term is raised before a copy is dropped";
    SwitchRaisesTerm "16" "a switch raises the term and leaves no appender";
    MarkBeforeDrop "retention" "the mark of what is retained is raised before a segment is dropped";
    DropBehindCursor "retention" "a segment is dropped only behind the applied cursor";
    RetainTheWindow "retention" "a segment is kept while a deadline of its operations can still be met";
    SplitNamesTerm "18" "a guild's log is opened only from the term that the split names";
    MergeAboveSplit "18" "a merge is appended only for a seal above the split's term";
    SealBeforeMerge "18" "a merge seals the guild's log before the bucket appends it";
    MergeSealsSegment "18" "a guild's last segment is sealed before its head";
    SettleBeforeHandover "18" "nothing is handed over while an append may still land";
    InheritWindow "18" "whoever takes a log over also loads the other log's dedupe window";
    InheritTimestamps "18" "whoever takes a log over starts above the other log's last timestamp";
    InheritOnlySealed "18" "a merged guild's window counts only up to its seal";
    InheritWithMerge "18" "the window travels with the merge itself";
    ShipBeforeBackfill "backfill" "shipping begins before the rows are read";
    RereadStale "backfill" "a batch read more than a minute ago is read again";
    GraceOutlastsBatch "backfill" "tombstones live longer than a batch's minute and its write's way";
    OriginalWriteTimes "backfill" "a copied cell keeps its write time";
    MergeByCell "backfill" "a copied row is merged cell by cell";
    RefillBehindRetention "backfill" "a ship cursor behind retention makes the rows be copied again";
    RepairExtraRows "verify" "a settled extra row is deleted, so that a receipt can be given";
    RepairAtOwnWriteTime "verify" "an extra row is deleted at its own highest write time";
    VerifySettled "verify" "a mismatch counts only once nothing is under way to it";
    CopyRemainingTtl "ttl" "a copied cell keeps what remains of its time to live";
    SkipExpired "ttl" "a cell with no time left is not written, for zero means for ever";
    ShipExpiredAsDelete "ttl" "a shipped entry whose time is over is written as a deletion at its write time";
    ShipRemainingTtl "ttl" "a shipped entry lives until the time its writer set";
}

impl Rule {
    /// Its name on the command line.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// The rule with a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.name() == name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rule {}): {}", self.name(), self.number(), self.says())
    }
}

/// Which rules hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    left_out: u64,
}

impl Rules {
    /// Every rule.
    pub const ALL: Self = Self { left_out: 0 };

    /// All of these but one.
    pub const fn without(self, rule: Rule) -> Self {
        Self { left_out: self.left_out | 1 << rule as u64 }
    }

    /// Whether a rule holds.
    pub const fn has(self, rule: Rule) -> bool {
        self.left_out & (1 << rule as u64) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_found_by_its_name_and_fits_the_set() {
        assert!(Rule::ALL.len() <= 64);
        for rule in Rule::ALL {
            assert_eq!(Rule::named(&rule.name()), Some(*rule));
            assert!(Rules::ALL.has(*rule) && !Rules::ALL.without(*rule).has(*rule));
        }
    }
}
