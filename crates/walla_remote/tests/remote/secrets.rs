//! Keys and passwords are in no output.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use walla_remote::{ApiKey, RemoteEngine};
use walla_runtime::AgentSpec;

use crate::client::{add, ask, hear, options, recording};
use crate::server::{Part, STREAM, bytes, reply, response};

const SECRET: &str = "sk-Z9f3kQ7x";

/// Writes all spans and events of all libraries, at every level.
struct Recorder(Arc<Mutex<String>>);

impl Visit for &Recorder {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0.lock().unwrap(), " {field}={value:?}");
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut &*self);
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut &*self);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let _ = write!(self.0.lock().unwrap(), "\n{}", event.metadata().target());
        event.record(&mut &*self);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn no_output_has_a_secret() {
    let log = Arc::new(Mutex::new(String::new()));
    tracing::subscriber::set_global_default(Recorder(Arc::clone(&log))).unwrap();
    let (server, requests) = recording(|request| match request.question() {
        "busy" => vec![response("503 Busy", "retry-after: 0\r\n", "")],
        // Servers repeat the key in their message.
        "echo" => {
            let message = format!("{{\"error\": {{\"message\": \"bad key {SECRET}\"}}}}");
            vec![response("401 Unauthorized", "", &message)]
        }
        // Within a stream, at a place where no text is, and at the place where messages are cut.
        "event" => {
            let event = format!("data: {{\"error\": {{\"message\": \"bad key {SECRET}\"}}}}\n\n");
            vec![bytes(format!("{STREAM}{event}")), Part::Close]
        }
        "chunk" => {
            let event = format!("data: {{\"choices\": \"{SECRET}\"}}\n\n");
            vec![bytes(format!("{STREAM}{event}")), Part::Close]
        }
        "long" => {
            let message =
                format!("{{\"error\": {{\"message\": \"{}{SECRET}\"}}}}", "x".repeat(293));
            vec![response("401 Unauthorized", "", &message)]
        }
        _ => reply("Yes."),
    });
    let mut options = options(&server);
    options.key = Some(ApiKey::from_fn(|| Ok(SECRET.into())));
    options.headers.push(("x-key".into(), SECRET.into()));
    options.extra.insert("key".into(), SECRET.into());
    options.retries.pause_min = Duration::from_millis(1);
    let mut output = format!("{options:?}");
    let engine = RemoteEngine::start(options).unwrap();
    let client = engine.client();
    let agent = add(&client, AgentSpec::new(""));
    for question in ["?", "busy", "echo", "event", "chunk", "long"] {
        let heard = hear(&client, ask(&client, agent, question));
        let _ = write!(output, "{heard:?}");
        if let Some(walla_runtime::ReplyEvent::Failed(error)) = heard.end {
            let _ = write!(output, "{error}");
        }
    }
    let _ = write!(output, "{engine:?} {client:?} {:?}", engine.options());
    let expected = format!("Bearer {SECRET}");
    assert_eq!(requests.lock().unwrap()[0].header("authorization"), Some(&*expected));
    assert!(output.contains("bad key [key]"), "{output}");
    let log = log.lock().unwrap();
    assert!(log.contains("walla::remote"), "nothing is logged: {log}");
    for text in [&*output, &*log] {
        let at = text.find("Z9f3kQ7x").or_else(|| text.find("sk-Z9"));
        assert_eq!(at.map(|at| &text[at.saturating_sub(200)..at]), None);
    }
}
