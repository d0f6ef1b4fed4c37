//! Whether automation is paused: shown and set.

use axum::Json;
use axum::extract::State;
use cell_api::Automation;

use super::Api;
use super::error::{ApiError, Body};
use crate::automation;

/// Longest note kept, in characters.
const LONGEST_NOTE: usize = 500;

pub(super) async fn show(State(api): State<Api>) -> Result<Json<Automation>, ApiError> {
    let (_, link) = api.fleet()?;
    Ok(Json(automation::read(&link).await?))
}

pub(super) async fn set(State(api): State<Api>, Body(wanted): Body<Automation>) -> Result<Json<Automation>, ApiError> {
    if wanted.note.as_ref().is_some_and(|note| note.chars().count() > LONGEST_NOTE) {
        return Err(ApiError::invalid("note", "at most 500 characters"));
    }
    let (_, link) = api.fleet()?;
    automation::write(&link, &wanted).await?;
    tracing::info!(paused = wanted.paused, "automation was set");
    Ok(Json(wanted))
}
