//! Warnings of a router in the log.

use std::time::Duration;

use walla_doubles::warnings;
use walla_router::{Router, RouterOptions};
use walla_runtime::{
    AgentId, AgentSpec, AskOptions, Command, EngineClient, Prompt, ReplyId, Route,
};

use crate::talker::Talker;

/// A misspelt substitute would otherwise be noticed when it is needed, or never.
#[test]
fn unknown_substitutes_are_reported_once_each() {
    let text = warnings(|| {
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
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("substitute=bee") && lines[1].contains("substitute=cee"), "{text}");
}
