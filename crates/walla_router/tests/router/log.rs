//! Warnings of a router in the log.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};
use walla_router::{Router, RouterOptions};
use walla_runtime::{
    AgentId, AgentSpec, AskOptions, Command, EngineClient, Prompt, ReplyId, Route,
};

use crate::talker::Talker;

/// Collects the fields of warnings, one line each.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields<'a>(&'a mut String);
        impl Visit for Fields<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                write!(self.0, "{field}={value:?};").expect("a string");
            }
        }
        let mut text = self.0.lock().expect("no panic");
        event.record(&mut Fields(&mut text));
        text.push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A misspelt substitute would otherwise be noticed when it is needed, or never.
#[test]
fn unknown_substitutes_are_reported_once_each() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let router = Router::new(RouterOptions::new("a"));
        let (a, b) = (Talker::new("a"), Talker::new("b"));
        router.engines().add("a", a.client()).expect("new");
        router.engines().add("b", b.client()).expect("new");
        for substitute in ["bee", "b", "bee", "cee"] {
            let agent = AgentId::unique();
            let mut spec = AgentSpec::new("p");
            spec.route = Route::engine("a").or(substitute, Duration::from_secs(1));
            let commands = [
                Command::AddAgent { agent, spec: Box::new(spec) },
                Command::Ask {
                    agent,
                    reply_id: ReplyId::unique(),
                    prompt: Prompt::Chat("hello".into()),
                    options: AskOptions::default(),
                },
            ];
            for command in commands {
                assert!(router.try_send(command).is_ok());
            }
            router.try_recv_many(usize::MAX, &mut Vec::new());
        }
    });
    let text = warnings.0.lock().expect("no panic").clone();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("substitute=bee") && lines[1].contains("substitute=cee"), "{text}");
}
