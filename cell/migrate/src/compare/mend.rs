//! Mends one settled mismatch by the write times the rows have, and looks whether it took: a write that a newer deletion hides is said to be
//! hidden, not mended.

use super::classify::{Class, classify};
use crate::row::{Cell, Row};
use crate::stream::cql::MARKER_US;
use crate::stream::{StreamError, Target};

/// Times to live of a row written anew may differ by this, in seconds.
const TTL_TOLERANCE_S: u64 = 5;

/// Mends; answers the class and whether both sides are equal now.
pub(super) async fn mend(
    target: &dyn Target,
    class: Class,
    ours: Option<Row>,
    theirs: Option<Row>,
) -> Result<(Class, bool), StreamError> {
    match (&ours, &theirs) {
        (Some(ours), None) => target.write(std::slice::from_ref(ours)).await?,
        (None, Some(theirs)) if theirs.clustering.is_none() => target.delete_cells(theirs, &theirs.cells).await?,
        // At its own newest write and no later: what somebody writes to it meanwhile stays.
        (None, Some(theirs)) => target.delete_row(theirs, theirs.newest_us().unwrap_or(MARKER_US)).await?,
        (Some(ours), Some(theirs)) => {
            let (write, delete) = difference(ours, theirs);
            if !delete.is_empty() {
                target.delete_cells(theirs, &delete).await?;
            }
            if !write.cells.is_empty() {
                target.write(&[write]).await?;
            }
        }
        (None, None) => {}
    }
    let Some(key) = ours.as_ref().or(theirs.as_ref()) else { return Ok((class, true)) };
    let now = target.read(key).await?;
    let equal = classify(ours.as_ref(), now.as_ref(), TTL_TOLERANCE_S).is_none();
    let hidden = ours.is_some() && now.is_none();
    Ok((if hidden { Class::Tombstone } else { class }, equal))
}

/// The source's cells that win in the target, and the target's cells that the source lacks.
fn difference(ours: &Row, theirs: &Row) -> (Row, Vec<Cell>) {
    let wins = |cell: &&Cell| {
        theirs.cell(cell.column).is_none_or(|other| {
            (cell.written_us, &cell.value, cell.ttl_s) != (other.written_us, &other.value, other.ttl_s)
        })
    };
    let write: Vec<Cell> = ours.cells.iter().filter(wins).cloned().collect();
    let delete = theirs.cells.iter().filter(|cell| ours.cell(cell.column).is_none()).cloned().collect();
    (Row { cells: write, ..ours.clone() }, delete)
}
