//! Structured logs to standard error. Fields, not interpolation; never message text, never tokens.

use tracing_subscriber::{EnvFilter, fmt, prelude::*};

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Starts logging at the level of `RUST_LOG`, or `info`. A second call changes nothing.
pub fn init(format: LogFormat) {
    init_at(format, "info");
}

/// Starts logging at the level of `RUST_LOG`, or at this one.
pub fn init_at(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let registry = tracing_subscriber::registry().with(filter);
    // A line that cannot be written (a full disk, a reader that is gone) is lost, and must not end whoever wrote it.
    let layer = fmt::layer().log_internal_errors(false).with_writer(std::io::stderr);
    let installed = match format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry.with(layer.with_ansi(false)).try_init(),
    };
    if installed.is_err() {
        tracing::debug!("logging was started before");
    }
}

/// Completes on SIGTERM or SIGINT: cancels the token, once.
pub async fn cancel_on_signal(token: tokio_util::sync::CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signal handlers could not be installed; the process ends only by being killed");
        return;
    };
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        () = token.cancelled() => return,
    };
    tracing::info!(signal = name, "shutting down");
    token.cancel();
}

/// Installs the process's TLS provider. Call first in every main: with two providers in the graph rustls would panic at first use.
pub fn install_tls_provider() {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
}
