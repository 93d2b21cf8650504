use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, dispatcher};

/// Keeps `tracing` from asking only the current thread whether a message is wanted: with one
/// subscriber, the first thread that reaches a message decides for all, and a test on another
/// thread, which wants none, would silence it.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// The warnings and errors of this thread during a call, one per line: `field=value;` for each
/// field.
pub fn warnings(run: impl FnOnce()) -> String {
    LazyLock::force(&SECOND);
    let warnings = Warnings::default();
    dispatcher::with_default(&Dispatch::new(warnings.clone()), run);
    warnings.lines().clone()
}

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Warnings {
    fn lines(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{field}={value:?};");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut lines = self.lines();
        event.record(&mut Fields(&mut lines));
        lines.push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::warnings;

    /// Another thread, without a subscriber, reaches a message first.
    #[test]
    fn no_other_thread_silences_a_message() {
        let warn = |number: u32| tracing::warn!(number, "a message");
        let lines = warnings(|| {
            std::thread::spawn(move || warn(1)).join().unwrap();
            warn(2);
            tracing::info!("not a warning");
        });
        assert_eq!(lines, "message=a message;number=2;\n");
    }
}
