//! A client in tests, and plain dialogue.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walla_remote::{RemoteClient, RemoteEngine, RemoteOptions};
use walla_runtime::{
    AgentId, AgentSpec, AskOptions, Command, ContextPolicy, ConversationEdit, CuePiece,
    CueSplitter, Cues, EngineClient, EngineState, EngineStats, Event, FinishReason, Notes, Prompt,
    RemoteError, ReplyError, ReplyEvent, ReplyId, Speaker, TimeLimit, Turn,
};

use crate::server::{
    Part, Request, STREAM, Server, bytes, done, event, finish, reply, response, text,
};

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(120);

/// A pause that outlasts every wait of a test.
const ENDLESS: Duration = Duration::from_secs(3_600);

/// Options with short pauses, for a server on this machine. A limit that a test does not wait for
/// is long, because the machine may be busy.
pub fn options(server: &Server) -> RemoteOptions {
    let mut options = RemoteOptions::new(server.url(), "m");
    options.limits.connect = LONG;
    (options.limits.first_token, options.limits.next_token) = (LONG, LONG);
    options.retries.max_retries = 2;
    options.retries.pause_min = Duration::from_millis(1);
    options.retries.max_pause = Duration::from_millis(4);
    options
}

pub fn client(options: RemoteOptions) -> RemoteClient {
    RemoteEngine::start(options).unwrap().client()
}

pub fn add(client: &RemoteClient, spec: AgentSpec) -> AgentId {
    let agent = AgentId::unique();
    client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).unwrap();
    agent
}

pub fn ask(client: &RemoteClient, agent: AgentId, question: &str) -> ReplyId {
    ask_with(client, agent, Prompt::Chat(question.into()), AskOptions::default())
}

pub fn ask_with(
    client: &RemoteClient,
    agent: AgentId,
    prompt: Prompt,
    options: AskOptions,
) -> ReplyId {
    let reply_id = ReplyId::unique();
    client.try_send(Command::Ask { agent, reply_id, prompt, options }).unwrap();
    reply_id
}

/// The next event.
pub fn recv(client: &RemoteClient) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = client.try_recv() {
            return event;
        }
        assert!(start.elapsed() < LONG, "no event");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until a condition of the engine's counters holds.
fn eventually(client: &RemoteClient, what: &str, is_so: impl Fn(EngineStats) -> bool) {
    let start = Instant::now();
    while !is_so(client.stats()) {
        assert!(start.elapsed() < LONG, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A reply that has ended.
#[derive(Debug, Default)]
pub struct Heard {
    pub text: String,
    pub reasoning: String,
    pub others: Vec<ReplyEvent>,
    pub end: Option<ReplyEvent>,
}

/// Waits for the end of a reply.
pub fn hear(client: &RemoteClient, reply_id: ReplyId) -> Heard {
    let mut heard = Heard::default();
    loop {
        let event = recv(client);
        if event.reply_id != reply_id {
            continue;
        }
        match event.what {
            ReplyEvent::Delta { text, .. } => heard.text.push_str(&text),
            ReplyEvent::Reasoning { text, .. } => heard.reasoning.push_str(&text),
            what if what.is_terminal() => {
                heard.end = Some(what);
                return heard;
            }
            what => heard.others.push(what),
        }
    }
}

pub fn error(heard: &Heard) -> &RemoteError {
    match &heard.end {
        Some(ReplyEvent::Failed(ReplyError::Remote { error, .. })) => error,
        other => panic!("{other:?}"),
    }
}

/// A server that records its requests.
pub fn recording(
    script: impl Fn(&Request) -> Vec<Part> + Send + Sync + 'static,
) -> (Server, Arc<Mutex<Vec<Request>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&requests);
    let server = Server::start(move |request| {
        recorded.lock().unwrap().push(request.clone());
        script(request)
    });
    (server, requests)
}

/// Cues in the deltas of a server, cut anywhere.
#[test]
fn cues_of_a_remote_reply_are_apart_from_speech() {
    let text = "*smiles* Größer (sighs deeply), no [laughs] less!";
    for cut in text.char_indices().map(|(at, _)| at) {
        let (first, second) = text.split_at(cut);
        let server = Server::start(move |_| {
            let parts = [self::text(first), self::text(second), finish("stop"), done(10, 9)];
            vec![bytes(format!("{STREAM}{}", parts.concat()))]
        });
        let client = client(options(&server));
        let greta = add(&client, AgentSpec::new("Greta"));
        let reply_id = ask(&client, greta, "*nods* Hello (bows)");
        let (cues, mut splitter) = (Cues::new(), CueSplitter::default());
        let (mut speech, mut found) = (String::new(), Vec::new());
        let mut take = |piece: CuePiece<'_>| match piece {
            CuePiece::Speech(text) => speech.push_str(text),
            CuePiece::Cue(cue) => found.push((cue.text.to_owned(), cue.at_bytes)),
        };
        loop {
            let event = recv(&client);
            match event.what {
                _ if event.reply_id != reply_id => {}
                ReplyEvent::Delta { text, .. } => splitter.push(&cues, &text, &mut take),
                what if what.is_terminal() => break splitter.finish(&mut take),
                _ => {}
            }
        }
        assert_eq!(speech, "Größer , no less!");
        let expected = [("smiles", 0), ("sighs deeply", 9), ("laughs", 14)];
        assert_eq!(found, expected.map(|(text, at)| (text.to_owned(), at)));
    }
}

fn turn(speaker: Speaker, text: &str) -> Turn {
    Turn::new(speaker, text)
}

#[test]
fn a_conversation_is_kept_and_sent() {
    let (server, requests) =
        recording(|request| reply(&format!("To {}: größer 🙂.", request.question())));
    let client = client(options(&server));
    let greeting = vec![turn(Speaker::Agent, "Welcome!")];
    let greta = add(&client, AgentSpec { turns: greeting, ..AgentSpec::new("You are Greta.") });
    let first = hear(&client, ask(&client, greta, "one"));
    assert_eq!(first.text, "To one: größer 🙂.");
    assert!(matches!(first.others[..], [ReplyEvent::Started { .. }]), "{first:?}");
    let Some(ReplyEvent::Finished { reason: FinishReason::EndOfTurn, usage }) = first.end else {
        panic!("{first:?}")
    };
    assert_eq!((usage.prompt_tokens, usage.reply_tokens), (10, 4));
    assert!(usage.first_token_micros > 0 && usage.total_micros >= usage.first_token_micros);
    let parts = usage.first_token;
    assert_eq!(parts.waiting_micros + parts.prefill_micros, usage.first_token_micros);
    let turns = vec![turn(Speaker::Observation, "Odo leaves.")];
    client.try_send(Command::AppendTurns { agent: greta, turns }).unwrap();
    hear(&client, ask(&client, greta, "two"));
    let requests = requests.lock().unwrap();
    let expected = json!([
        {"role": "system", "content": "You are Greta."},
        {"role": "user", "content": "..."},
        {"role": "assistant", "content": "Welcome!"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "To one: größer 🙂."},
        {"role": "user", "content": "Observation: Odo leaves.\n\ntwo"},
    ]);
    assert_eq!(requests[1].body["messages"], expected);
    assert!(requests[0].head.starts_with("POST /v1/chat/completions HTTP/1.1"));
    assert_eq!(requests[0].header("content-type"), Some("application/json"));
    assert_eq!(requests[0].header("authorization"), None);
}

#[test]
fn asks_of_one_agent_are_answered_in_order() {
    let (server, requests) = recording(|request| reply(&format!("to {}", request.question())));
    let client = client(options(&server));
    let odo = add(&client, AgentSpec::new("You are Odo."));
    let asked = ["a", "b", "c"].map(|question| ask(&client, odo, question));
    let turns = vec![turn(Speaker::Observation, "It rains.")];
    client.try_send(Command::AppendTurns { agent: odo, turns }).unwrap();
    let last = ask(&client, odo, "d");
    for (reply_id, question) in asked.into_iter().zip(["a", "b", "c"]) {
        assert_eq!(hear(&client, reply_id).text, format!("to {question}"));
    }
    hear(&client, last);
    let requests = requests.lock().unwrap();
    let messages = requests[3].body["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 8, "{messages:?}");
    assert_eq!(messages[7]["content"], "Observation: It rains.\n\nd");
}

#[test]
fn a_cancelled_reply_keeps_its_heard_text_and_drops_the_request() {
    let (server, requests) = recording(|request| {
        if request.question() == "again" {
            return reply("Yes.");
        }
        let begin = format!("{STREAM}{}{}", text("One two "), text("three"));
        vec![bytes(begin), Part::Pause(ENDLESS)]
    });
    let client = client(options(&server));
    let greta = add(&client, AgentSpec::new("You are Greta."));
    let reply_id = ask(&client, greta, "count");
    let mut heard = String::new();
    while heard != "One two three" {
        if let ReplyEvent::Delta { text, .. } = recv(&client).what {
            heard.push_str(&text);
        }
    }
    let cancel = Command::CancelHeard { agent: greta, reply_id, heard_bytes: 7 };
    client.try_send(cancel).unwrap();
    let end = hear(&client, reply_id).end;
    assert!(matches!(end, Some(ReplyEvent::Finished { reason: FinishReason::Cancelled, .. })));
    // The first request has ended: the server would wait longer than this one.
    hear(&client, ask(&client, greta, "again"));
    assert_eq!(requests.lock().unwrap()[1].body["messages"][2]["content"], "One two");
}

#[test]
fn removed_agents_and_replaced_conversations_end_their_replies() {
    let server =
        Server::start(|_| vec![bytes(format!("{STREAM}{}", text("Well"))), Part::Pause(ENDLESS)]);
    let client = client(options(&server));
    let [one, two] = ["1", "2"].map(|persona| add(&client, AgentSpec::new(persona)));
    let asked = [one, one, two, two].map(|agent| ask(&client, agent, "?"));
    client.try_send(Command::RemoveAgent { agent: one }).unwrap();
    client.try_send(Command::SetConversation { agent: two, turns: Vec::new() }).unwrap();
    let mut ends = Vec::new();
    while ends.len() < 4 {
        let event = recv(&client);
        if let ReplyEvent::Finished { reason, .. } = event.what {
            assert_eq!(reason, FinishReason::Cancelled);
            ends.push(event.reply_id);
        }
    }
    ends.sort();
    assert_eq!(ends, asked);
    let unknown = hear(&client, ask(&client, one, "?"));
    assert_eq!(unknown.end, Some(ReplyEvent::Failed(ReplyError::UnknownAgent)));
}

#[test]
fn a_stopped_engine_and_a_stopped_client_end_all_replies() {
    let server = Server::start(|_| vec![Part::Pause(ENDLESS)]);
    let client = client(options(&server));
    let agents: Vec<_> = (0..40).map(|_| add(&client, AgentSpec::new(""))).collect();
    let mut open: Vec<_> = agents.iter().map(|&agent| ask(&client, agent, "?")).collect();
    client.stop();
    while !open.is_empty() {
        let event = recv(&client);
        assert!(matches!(event.what, ReplyEvent::Failed(ReplyError::EngineGone(_))), "{event:?}");
        open.retain(|reply_id| *reply_id != event.reply_id);
    }
    assert!(matches!(client.state(), EngineState::Stopped));
    let reply_id = ReplyId::unique();
    let refused = client.try_send(Command::ask(agents[0], reply_id, Prompt::Continue));
    assert!(refused.is_err_and(|refused| !refused.is_full()));
    assert_eq!(client.try_recv(), None);
}

#[test]
fn a_full_queue_of_events_delays_and_loses_nothing() {
    let words: String = (0..6_000).map(|number| format!("{number} ")).collect();
    let expected = words.clone();
    let server = Server::start(move |_| reply(&words));
    let client = client(options(&server));
    let agents = [0, 1].map(|_| add(&client, AgentSpec::new("")));
    let asked = agents.map(|agent| ask(&client, agent, "?"));
    eventually(&client, "a full queue", |stats| stats.queue_full > 0);
    let mut texts = [String::new(), String::new()];
    let mut ended = 0;
    while ended < 2 {
        let event = recv(&client);
        let at = asked.iter().position(|reply_id| *reply_id == event.reply_id).unwrap();
        match event.what {
            ReplyEvent::Delta { text, .. } => texts[at].push_str(&text),
            what => ended += u32::from(what.is_terminal()),
        }
    }
    assert_eq!(texts, [expected.clone(), expected]);
}

#[test]
fn a_pause_begins_no_request() {
    let (server, requests) = recording(|_| reply("Yes."));
    let client = client(options(&server));
    client.set_paused(true);
    let agent = add(&client, AgentSpec::new(""));
    let reply_id = ask(&client, agent, "?");
    std::thread::sleep(Duration::from_millis(50));
    assert!(requests.lock().unwrap().is_empty());
    client.set_paused(false);
    assert_eq!(hear(&client, reply_id).text, "Yes.");
}

#[test]
fn requests_are_bounded_and_served_by_priority() {
    let (server, requests) = recording(|request| {
        let mut parts = reply(request.question());
        parts.insert(0, Part::Pause(Duration::from_millis(30)));
        parts
    });
    let mut options = options(&server);
    options.max_requests = 1;
    let client = client(options);
    client.set_paused(true);
    let agents =
        [0, 5, -5, 3].map(|priority| add(&client, AgentSpec { priority, ..AgentSpec::new("") }));
    let asked = agents.map(|agent| ask(&client, agent, &agent.0.to_string()));
    eventually(&client, "all have arrived", |stats| stats.asks_waiting == 4);
    client.set_paused(false);
    let last = asked[2];
    hear(&client, last);
    let order: Vec<_> =
        requests.lock().unwrap().iter().map(|request| request.question().to_owned()).collect();
    let expected = [1, 3, 0, 2].map(|at: usize| agents[at].0.to_string());
    assert_eq!(order, expected);
}

#[test]
fn a_long_conversation_drops_its_oldest_turns_or_is_refused() {
    let (server, requests) = recording(|_| reply("Yes."));
    let mut options = options(&server);
    options.context_tokens = 400;
    let client = client(options);
    let spec = |context_policy| {
        let speakers = [Speaker::User, Speaker::Agent].into_iter().cycle().take(40);
        let turns = speakers.map(|speaker| turn(speaker, &"word ".repeat(20))).collect();
        AgentSpec { context_policy, turns, max_reply_tokens: 50, ..AgentSpec::new("persona") }
    };
    let asked = |policy| {
        let agent = add(&client, spec(policy));
        hear(&client, ask(&client, agent, "now?"))
    };
    assert_eq!(asked(ContextPolicy::DropOldest).text, "Yes.");
    let messages = requests.lock().unwrap()[0].body["messages"].as_array().unwrap().clone();
    assert!((4..20).contains(&messages.len()), "{}", messages.len());
    assert_eq!(
        (&messages[0]["content"], &messages[1]["role"]),
        (&json!("persona"), &json!("user"))
    );
    let refused = asked(ContextPolicy::Refuse).end;
    assert!(matches!(refused, Some(ReplyEvent::Failed(ReplyError::PromptTooLong { .. }))));
    let stopped = asked(ContextPolicy::Stop).end;
    assert!(matches!(
        stopped,
        Some(ReplyEvent::Finished { reason: FinishReason::ContextFull, .. })
    ));
}

#[test]
fn failures_have_their_reasons() {
    let json = "content-type: application/json\r\n";
    let server = Server::start(move |request| {
        let message = r#"{"error": {"message": "no such model: m", "code": 404}}"#;
        match request.question() {
            "status 404" => vec![response("404 Not Found", json, message)],
            "context of OpenAI" => {
                let body = r#"{"error": {"message": "m", "code": "context_length_exceeded"}}"#;
                vec![response("400 Bad Request", json, body)]
            }
            "context of llama.cpp" => {
                let body = r#"{"error": {"code": 400, "message": "m", "type": "exceed_context_size_error"}}"#;
                vec![response("400 Bad Request", json, body)]
            }
            "context of vLLM" => {
                let body = r#"{"error": {"message": "This model's maximum context length is 64 tokens.", "code": 400}}"#;
                vec![response("400 Bad Request", json, body)]
            }
            "status 401" => vec![response("401 Unauthorized", json, message)],
            "status 429" => {
                vec![response("429 Too Many Requests", "retry-after: 7200\r\n", "slow down")]
            }
            "status 500" => vec![response("500 Oops", json, "")],
            "redirect" => vec![response("302 Found", "location: http://127.0.0.1:1/\r\n", "")],
            "web page" => vec![response("200 OK", "content-type: text/html\r\n", "<h1>Hi</h1>")],
            "slow" => vec![Part::Pause(ENDLESS)],
            "stall" => vec![bytes(format!("{STREAM}{}", text("Well"))), Part::Pause(ENDLESS)],
            "cut" => vec![bytes(format!("{STREAM}{}", text("Well"))), Part::Close],
            "nothing" => vec![Part::Close],
            "no reply" => vec![bytes(format!("{STREAM}data: [DONE]\n\n")), Part::Close],
            "filtered" => vec![bytes(format!("{STREAM}{}", finish("content_filter"))), Part::Close],
            "no chunk" => vec![bytes(format!("{STREAM}data: {{\"choices\": 7}}\n\n")), Part::Close],
            "huge" => vec![bytes(STREAM), Part::Endless(vec![b'x'; 1 << 16])],
            "endless" => vec![bytes(STREAM), Part::Endless(text("and so on ").into_bytes())],
            _ => vec![bytes(format!("{STREAM}data: {message}\n\n")), Part::Close],
        }
    });
    let heard_with = |options: RemoteOptions, question: &str| {
        let client = client(options);
        let agent = add(&client, AgentSpec::new(""));
        hear(&client, ask(&client, agent, question))
    };
    let heard = |question: &str| heard_with(options(&server), question);
    let message = || "no such model: m".to_owned();
    assert_eq!(
        *error(&heard("status 404")),
        RemoteError::Refused { status: 404, message: message() }
    );
    assert_eq!(
        *error(&heard("status 401")),
        RemoteError::Unauthorized { status: 401, message: message() }
    );
    for server in ["OpenAI", "llama.cpp", "vLLM"] {
        let heard = heard(&format!("context of {server}"));
        assert!(matches!(error(&heard), RemoteError::ContextExceeded { status: 400, .. }));
    }
    let busy = RemoteError::Busy { status: 429, message: "slow down".into() };
    assert_eq!(*error(&heard("status 429")), busy, "an answer after two hours is no answer");
    assert_eq!(
        *error(&heard("status 500")),
        RemoteError::Failed { status: 500, message: String::new() }
    );
    assert_eq!(
        *error(&heard("redirect")),
        RemoteError::Refused { status: 302, message: String::new() }
    );
    assert!(matches!(error(&heard("web page")), RemoteError::Protocol(_)));
    let mut hasty = options(&server);
    hasty.limits.first_token = Duration::from_millis(300);
    let slow = heard_with(hasty, "slow");
    assert_eq!(*error(&slow), RemoteError::TimedOut(TimeLimit::FirstToken));
    let mut hasty = options(&server);
    hasty.limits.next_token = Duration::from_millis(200);
    let stall = heard_with(hasty, "stall");
    assert_eq!(
        (error(&stall), &*stall.text),
        (&RemoteError::TimedOut(TimeLimit::NextToken), "Well")
    );
    let cut = heard("cut");
    assert!(matches!(error(&cut), RemoteError::Interrupted(_)) && cut.text == "Well", "{cut:?}");
    assert!(matches!(error(&heard("nothing")), RemoteError::Interrupted(_)));
    assert!(matches!(error(&heard("no reply")), RemoteError::Protocol(_)));
    assert_eq!(*error(&heard("filtered")), RemoteError::Filtered);
    assert!(matches!(error(&heard("no chunk")), RemoteError::Protocol(_)));
    assert_eq!(*error(&heard("huge")), RemoteError::TooLarge { limit: 256 << 10 });
    let endless = heard("endless");
    assert_eq!(*error(&endless), RemoteError::TooLarge { limit: 256 << 10 });
    assert!(endless.text.len() <= 256 << 10 && endless.text.starts_with("and so on and so on "));
    assert_eq!(
        *error(&heard("error event")),
        RemoteError::Failed { status: 404, message: message() }
    );
}

#[test]
fn a_request_is_repeated_only_before_the_first_token() {
    let attempts = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&attempts);
    let server = Server::start(move |request| {
        let mut attempts = counted.lock().unwrap();
        *attempts += 1;
        match (request.question(), *attempts) {
            ("busy", 1) => vec![response("503 Busy", "retry-after: 0\r\n", "")],
            ("busy", 2) => vec![bytes(STREAM), Part::Close],
            ("busy", _) => reply("Here I am."),
            _ => vec![bytes(format!("{STREAM}{}", text("Well"))), Part::Close],
        }
    });
    let client = client(options(&server));
    let agent = add(&client, AgentSpec::new(""));
    let heard = hear(&client, ask(&client, agent, "busy"));
    assert_eq!((&*heard.text, *attempts.lock().unwrap()), ("Here I am.", 3));
    assert_eq!(heard.others.len(), 1, "started once: {heard:?}");
    *attempts.lock().unwrap() = 0;
    let heard = hear(&client, ask(&client, agent, "cut"));
    assert_eq!((&*heard.text, *attempts.lock().unwrap()), ("Well", 1));
    let mut nobody = options(&server);
    nobody.url = "http://127.0.0.1:1/v1".into();
    let client = self::client(nobody);
    let agent = add(&client, AgentSpec::new(""));
    let refused = hear(&client, ask(&client, agent, "?"));
    assert!(matches!(error(&refused), RemoteError::Connect(_)), "{refused:?}");
}

#[test]
fn open_asks_are_bounded() {
    let server = Server::start(|_| vec![Part::Pause(ENDLESS)]);
    let mut options = options(&server);
    (options.max_asks, options.max_ask_bytes, options.max_agents) = (3, 100, 3);
    let client = client(options);
    let agents = [0; 4].map(|_| add(&client, AgentSpec::new("")));
    let refused = |agent, question: &str| match hear(&client, ask(&client, agent, question)).end {
        Some(ReplyEvent::Failed(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(agents[3], "?"), ReplyError::TooManyAgents { max_agents: 3 });
    let first = ask(&client, agents[0], &"x".repeat(60));
    let error = refused(agents[1], &"x".repeat(60));
    let expected = "1 asks with 60 bytes have not ended; at most 3 with 100 bytes may be open";
    assert_eq!(error.to_string(), expected);
    let waiting = ask(&client, agents[0], "y");
    ask(&client, agents[1], "y");
    assert!(matches!(refused(agents[2], "y"), ReplyError::TooManyAsks { asks: 3, .. }));
    for reply_id in [waiting, first] {
        client.try_send(Command::Cancel { agent: agents[0], reply_id }).unwrap();
        hear(&client, reply_id);
    }
    let next = ask(&client, agents[2], &"x".repeat(90));
    eventually(&client, "two requests", |stats| stats.agents_active == 2);
    client.try_send(Command::Cancel { agent: agents[2], reply_id: next }).unwrap();
    let end = hear(&client, next).end;
    assert!(matches!(end, Some(ReplyEvent::Finished { .. })), "{end:?}");
}

#[test]
fn conversations_are_rewound_copied_and_asked_again_with_another_seed() {
    let (server, requests) = recording(|_| reply("Yes."));
    let client = client(options(&server));
    let agent = add(&client, AgentSpec::new("p"));
    for question in ["one?", "two?"] {
        hear(&client, ask(&client, agent, question));
    }
    let again = ask_with(&client, agent, Prompt::Again, AskOptions::seed(77));
    assert_eq!(hear(&client, again).text, "Yes.");
    let copy = AgentId::unique();
    client.try_send(Command::ForkAgent { agent: copy, source: agent, spec: None }).unwrap();
    let edit = ConversationEdit::Rewind { turns: 3 };
    client.try_send(Command::EditConversation { agent, edit }).unwrap();
    hear(&client, ask_with(&client, agent, Prompt::Continue, AskOptions::default()));
    hear(&client, ask(&client, copy, "three?"));
    let other = add(&client, AgentSpec::new("q"));
    let edit = ConversationEdit::CopyOf { source: copy };
    client.try_send(Command::EditConversation { agent: other, edit }).unwrap();
    let edit = ConversationEdit::Text { turns_after: 1, text: "THREE?".into() };
    client.try_send(Command::EditConversation { agent: other, edit }).unwrap();
    hear(&client, ask(&client, other, "four?"));
    let none =
        ask_with(&client, add(&client, AgentSpec::new("")), Prompt::Again, AskOptions::default());
    assert_eq!(hear(&client, none).end, Some(ReplyEvent::Failed(ReplyError::NoReply)));
    let requests = requests.lock().unwrap();
    let texts = |at: usize| -> Vec<String> {
        let messages = requests[at].body["messages"].as_array().unwrap();
        let texts = messages.iter().skip(1).map(|message| message["content"].as_str().unwrap());
        texts.map(str::to_owned).collect()
    };
    assert_eq!(texts(1), ["one?", "Yes.", "two?"]);
    assert_eq!(texts(2), texts(1), "the same again");
    assert_eq!(requests[2].body["seed"], json!(77));
    assert_ne!(requests[1].body["seed"], json!(77));
    assert_eq!(texts(3), ["one?"]);
    assert_eq!(texts(4), ["one?", "Yes.", "two?", "Yes.", "three?"]);
    assert_eq!(texts(5), ["one?", "Yes.", "two?", "Yes.", "THREE?", "Yes.", "four?"]);
    assert_eq!(requests.len(), 6);
}

#[test]
fn notes_are_an_observation_before_the_question_of_one_request() {
    let (server, requests) = recording(|_| reply("Yes."));
    let client = client(options(&server));
    let agent = add(&client, AgentSpec::new("p"));
    let notes = AskOptions::notes(Notes::new(["It rains."]));
    hear(&client, ask_with(&client, agent, Prompt::Chat("one?".into()), notes));
    hear(&client, ask(&client, agent, "two?"));
    let requests = requests.lock().unwrap();
    let bodies: Vec<_> = requests.iter().map(|r| r.body["messages"].to_string()).collect();
    assert!(bodies[0].contains("You know:\\n- It rains."), "{}", bodies[0]);
    let (note, question) = (bodies[0].find("It rains."), bodies[0].find("one?"));
    assert!(note < question, "{}", bodies[0]);
    assert!(!bodies[1].contains("It rains."), "{}", bodies[1]);
}

/// What a server of the wild sends.
#[test]
fn unusual_streams_are_read() {
    let call = |index: Value, name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        event(
            &json!({"index": 0, "delta": {"tool_calls": [{"index": index, "function": function}]}}),
        )
    };
    let stream = move |request: &Request| match request.question() {
        "mark" => STREAM.to_owned() + "\u{feff}" + &text("Yes.") + &finish("stop") + &done(1, 1),
        "kind" => {
            let head = STREAM.replace("text/event-stream", "Text/Event-Stream; charset=utf-8");
            head + &text("Yes.") + &finish("stop") + &done(1, 1)
        }
        "index" => {
            let calls = call(json!(u32::MAX), "wave", "{}") + &call(Value::Null, "wave", "{}");
            STREAM.to_owned() + &calls + &finish("tool_calls") + &done(1, 1)
        }
        "held" => STREAM.to_owned() + &text("a <thin"),
        "numbers" => {
            let empty = "data: {\"choices\": null, \"usage\": null}\n\n";
            let said = json!({"index": null, "delta": {"content": "Yes.", "tool_calls": null}});
            let counts = "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7.0, \
                \"completion_tokens\": 3, \"prompt_tokens_details\": {\"cached_tokens\": null}, \
                \"completion_tokens_details\": {\"reasoning_tokens\": -1}}}\n\n";
            STREAM.to_owned() + empty + &event(&said) + &finish("stop") + counts
        }
        "error" => {
            let error = json!({"object": "error", "message": "out of pages", "code": 507});
            STREAM.to_owned() + &text("Ye") + &format!("data: {error}\n\n")
        }
        _ => STREAM.to_owned() + &text("Ye") + &finish("abort") + &done(1, 1),
    };
    let server = Server::start(move |request| vec![bytes(stream(request)), Part::Close]);
    let client = client(options(&server));
    // Each question in its own conversation.
    let heard = |question| hear(&client, ask(&client, add(&client, AgentSpec::new("")), question));
    for question in ["mark", "kind"] {
        let heard = heard(question);
        assert_eq!(heard.text, "Yes.", "{question}: {heard:?}");
    }
    let of_index = heard("index");
    assert!(matches!(of_index.end, Some(ReplyEvent::Finished { .. })), "{of_index:?}");
    let of_held = heard("held");
    assert_eq!(of_held.text, "a <thin");
    assert!(matches!(error(&of_held), RemoteError::Interrupted(_)), "{of_held:?}");
    let of_numbers = heard("numbers");
    assert_eq!(of_numbers.text, "Yes.");
    let Some(ReplyEvent::Finished { usage, .. }) = of_numbers.end else { panic!("{of_numbers:?}") };
    assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.reply_tokens), (7, 0, 3));
    let of_error = heard("error");
    let failed = RemoteError::Failed { status: 507, message: "out of pages".into() };
    assert_eq!((of_error.text.as_str(), error(&of_error)), ("Ye", &failed));
    let of_abort = heard("abort");
    assert_eq!(of_abort.text, "Ye");
    assert!(matches!(error(&of_abort), RemoteError::Interrupted(_)), "a cut reply: {of_abort:?}");
}

/// The status says what is wrong, though the body never ends.
#[test]
fn an_error_with_an_endless_body_is_that_error() {
    let server = Server::start(|_| {
        let mut parts = vec![bytes("HTTP/1.1 401 Unauthorized\r\n\r\nno such key")];
        parts.extend((0..100).flat_map(|_| [Part::Pause(Duration::from_millis(200)), bytes(".")]));
        parts
    });
    let client = client(options(&server));
    let heard = hear(&client, ask(&client, add(&client, AgentSpec::new("")), "?"));
    let RemoteError::Unauthorized { status: 401, message } = error(&heard) else {
        panic!("{heard:?}")
    };
    assert!(message.starts_with("no such key"), "{message}");
}

/// Bytes of a call count as output, though the call is passed on at its end.
#[test]
fn a_call_whose_arguments_arrive_slowly_is_no_stall() {
    let part = |arguments: &str| {
        let call = json!({"index": 0, "id": "x", "function": {"name": "", "arguments": arguments}});
        event(&json!({"index": 0, "delta": {"tool_calls": [call]}}))
    };
    // The call takes longer than the limit, its parts do not. On a busy machine one may, so the
    // times grow.
    let answered = |pause: Duration| {
        let server = slow_call(pause, part);
        let mut options = options(&server);
        options.limits.next_token = 6 * pause;
        let client = client(options);
        let agent = add(&client, AgentSpec::new(""));
        let heard = hear(&client, ask(&client, agent, "?"));
        println!("{pause:?}: {heard:?}");
        matches!(heard.end, Some(ReplyEvent::Finished { .. }))
    };
    assert!([100, 400, 1_600].into_iter().map(Duration::from_millis).any(answered));
}

/// A server that sends a call in ten parts with this pause before each.
fn slow_call(pause: Duration, part: fn(&str) -> String) -> Server {
    Server::start(move |_| {
        let mut parts = vec![bytes(STREAM.to_owned() + &text("Look!"))];
        let name = json!({"index": 0, "function": {"name": "wave", "arguments": "{\"a\": \""}});
        parts.push(bytes(event(&json!({"index": 0, "delta": {"tool_calls": [name]}}))));
        for _ in 0..10 {
            parts.extend([Part::Pause(pause), bytes(part("x"))]);
        }
        let end = part("\"}") + &finish("tool_calls") + &done(1, 1);
        parts.extend([bytes(end), Part::Close]);
        parts
    })
}

#[test]
fn a_repetition_that_fails_loses_no_reply() {
    let (server, requests) = recording(|request| match request.body["seed"].as_u64() {
        Some(13) => vec![response("400 Bad", "", "{}")],
        _ => reply("Yes."),
    });
    let client = client(options(&server));
    let agent = add(&client, AgentSpec::new(""));
    hear(&client, ask(&client, agent, "one?"));
    for seed in [13, 13, 1] {
        let heard = hear(&client, ask_with(&client, agent, Prompt::Again, AskOptions::seed(seed)));
        assert_eq!(heard.text.is_empty(), seed == 13, "{heard:?}");
    }
    hear(&client, ask(&client, agent, "two?"));
    let requests = requests.lock().unwrap();
    let last = requests.last().unwrap().body["messages"].as_array().unwrap().len();
    assert_eq!((requests.len(), last), (5, 3));
}
