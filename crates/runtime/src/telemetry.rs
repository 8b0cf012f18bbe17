//! What a role tells about itself: logs on stderr, metrics over HTTP.

mod http;
mod log;
mod metrics;
mod throttle;

pub use http::serve_http;
pub use log::{LOG_BYTES_MAX, LOG_FILE_ENV};
pub use metrics::{Counter, Gauge, Metric, MetricKind, OpCounters, Registry};
pub use throttle::Throttle;

use tracing_subscriber::EnvFilter;

/// The environment variable with the log filter, in tracing-subscriber's syntax.
pub const LOG_FILTER_ENV: &str = "SAKER_LOG";

const LOG_FILTER_DEFAULT: &str = "info";

/// Sends logs to stderr, filtered by `SAKER_LOG` (default `info`). Lines that cannot be written are
/// counted and left out; a file that [`LOG_FILE_ENV`] names is begun anew at [`LOG_BYTES_MAX`]. Only the process's first call
/// has an effect. A filter that cannot be read is reported and replaced by the default.
pub fn init() {
    let asked = std::env::var(LOG_FILTER_ENV).ok().filter(|text| !text.is_empty());
    let parsed = EnvFilter::try_new(asked.as_deref().unwrap_or(LOG_FILTER_DEFAULT));
    let (filter, refused) = match parsed {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(LOG_FILTER_DEFAULT), Some(error)),
    };
    log::begin();
    let set = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| log::Lines)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init();
    if let (Ok(()), Some(error)) = (set, refused) {
        tracing::warn!("{LOG_FILTER_ENV}: {error}; using {LOG_FILTER_DEFAULT}");
    }
}
