//! Seeded stories with a server that misbehaves: each ask ends once, no text is lost or doubled,
//! memory and the time of calls are bounded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walla_remote::RemoteClient;
use walla_runtime::{
    AgentId, AgentSpec, Command, EngineClient, FinishReason, Prompt, RemoteError, ReplyError,
    ReplyEvent, ReplyId, TimeLimit,
};

use crate::client::{client, options};
use crate::own_thread::waits;
use crate::server::{Part, STREAM, Server, bytes, done, finish, response, text};

/// Random numbers from a seed: xorshift (Marsaglia).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = dice.throw(2));
        dice
    }

    /// A number below `sides`.
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// How the server treats a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    None,
    Refused,
    Busy,
    Failed,
    WrongModel,
    WrongKind,
    ErrorEvent,
    SlowFirst,
    Stall,
    CutInEvent,
    CutInCharacter,
    CutBeforeToken,
    BadJson,
    BadUtf8,
    NoFinish,
    Repeats,
    Endless,
    HugeLine,
}

use Fault::*;

const FAULTS: [Fault; 18] = [
    None,
    Refused,
    Busy,
    Failed,
    WrongModel,
    WrongKind,
    ErrorEvent,
    SlowFirst,
    Stall,
    CutInEvent,
    CutInCharacter,
    CutBeforeToken,
    BadJson,
    BadUtf8,
    NoFinish,
    Repeats,
    Endless,
    HugeLine,
];

impl Fault {
    /// Faults that end an attempt before its first token, so that the request is repeated.
    fn is_repeated(self) -> bool {
        matches!(self, Refused | Busy | Failed | CutBeforeToken)
    }
}

/// A pause that outlasts every limit.
const ENDLESS: Duration = Duration::from_secs(3_600);

/// One ask: the faults of its attempts, and its words.
#[derive(Debug)]
struct Story {
    faults: Vec<Fault>,
    words: Vec<String>,
    seed: u64,
}

/// Attempts of an ask: the first one and two repetitions.
const ATTEMPTS: usize = 3;

impl Story {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut faults = Vec::new();
        while faults.len() < ATTEMPTS {
            let fault = match dice.throw(24) {
                0..6 => None,
                number => FAULTS[number as usize - 6],
            };
            faults.push(fault);
            if !fault.is_repeated() {
                break;
            }
        }
        let kinds = ["größer ", "🙂", "word ", "\n", "naïve ", "x"];
        let words = (0..1 + dice.throw(12))
            .map(|number| format!("{}{number} ", kinds[dice.throw(kinds.len() as u64) as usize]));
        Self { faults, words: words.collect(), seed }
    }

    /// Whether it ends by a limit of time.
    fn times_out(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, SlowFirst | Stall))
    }

    fn text(&self) -> String {
        self.words.concat()
    }

    /// The response to an attempt.
    fn response(&self, attempt: usize) -> Vec<Part> {
        let mut dice = Dice::new(self.seed ^ 0xabcd ^ (attempt as u64) << 32);
        let fault = self.faults[attempt.min(self.faults.len() - 1)];
        let cut = 1 + dice.throw(self.words.len() as u64) as usize;
        let mut stream = String::new();
        for (number, word) in self.words.iter().enumerate() {
            if dice.throw(4) == 0 {
                stream.push_str(": a comment\n\n");
            }
            if number < cut
                || !matches!(
                    fault,
                    Stall
                        | CutInEvent
                        | CutInCharacter
                        | Endless
                        | HugeLine
                        | BadJson
                        | BadUtf8
                        | ErrorEvent
                        | NoFinish
                )
            {
                stream.push_str(&text(word));
            }
        }
        let end = finish("stop");
        let counted = if dice.throw(2) == 0 { done(5, 5) } else { "data: [DONE]\n\n".into() };
        let whole = |stream: String| {
            let stream =
                if dice.clone_throw(3) == 0 { stream.replace("\n", "\r\n") } else { stream };
            pieces(format!("{STREAM}{stream}").into_bytes(), self.seed)
        };
        let stop = |mut parts: Vec<Part>| {
            parts.push(Part::Close);
            parts
        };
        match fault {
            None => stop(whole(stream + &end + &counted)),
            Repeats => {
                stop(whole(stream + &end + &end + &text("behind the end") + &counted + &counted))
            }
            Refused => vec![Part::Close],
            Busy => vec![response("429 Too Many Requests", "retry-after: 0\r\n", "busy")],
            Failed => vec![response("500 Oops", "", "{\"error\": \"oops\"}")],
            WrongModel => {
                vec![response("404 Not Found", "", "{\"error\": {\"message\": \"no model\"}}")]
            }
            WrongKind => vec![response("200 OK", "content-type: text/html\r\n", "<p>Hello</p>")],
            ErrorEvent => stop(whole(
                stream + "data: {\"error\": {\"message\": \"lost\", \"code\": 503}}\n\n",
            )),
            SlowFirst => vec![Part::Pause(ENDLESS)],
            Stall => {
                let mut parts = whole(stream);
                parts.push(Part::Pause(ENDLESS));
                parts
            }
            CutInEvent => stop(whole(stream + "data: {\"choices\": [{\"index\": 0, \"del")),
            CutInCharacter => {
                let mut parts = whole(stream);
                parts.push(Part::Bytes(
                    b"data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"\xf0\x9f"
                        .to_vec(),
                ));
                stop(parts)
            }
            CutBeforeToken => vec![bytes(STREAM), bytes(": wait\n\n"), Part::Close],
            BadJson => stop(whole(stream + "data: {\"choices\": [}\n\n")),
            BadUtf8 => {
                let mut parts = whole(stream);
                parts.push(Part::Bytes(b"data: \xff\xfe\n\n".to_vec()));
                stop(parts)
            }
            NoFinish => stop(whole(stream + "data: [DONE]\n\n")),
            Endless => {
                let mut parts = whole(stream);
                parts.push(Part::Endless(text("more ").into_bytes()));
                parts
            }
            HugeLine => {
                let mut parts = whole(stream);
                parts.push(Part::Endless(vec![b'y'; 8_192]));
                parts
            }
        }
    }

    /// Checks its text and its end.
    fn check(&self, heard: &str, end: &ReplyEvent) {
        let fault = self.faults[self.faults.len() - 1];
        let seed = self.seed;
        let whole = self.text();
        let is_cancelled =
            matches!(end, ReplyEvent::Finished { reason: FinishReason::Cancelled, .. });
        if fault == Endless {
            let at = heard.find("more ").unwrap_or(heard.len());
            let (begin, more) = heard.split_at(at);
            assert!(whole.starts_with(begin), "story {seed}: {begin:?}");
            assert_eq!(more, &"more ".repeat(more.len() / 5 + 1)[..more.len()], "story {seed}");
        } else if is_cancelled
            || matches!(
                fault,
                Stall
                    | CutInEvent
                    | CutInCharacter
                    | BadJson
                    | BadUtf8
                    | ErrorEvent
                    | NoFinish
                    | HugeLine
            )
        {
            assert!(whole.starts_with(heard), "story {seed}, {fault:?}: {heard:?} of {whole:?}");
        } else if matches!(fault, None | Repeats) {
            assert_eq!(heard, whole, "story {seed}, {fault:?}");
        } else {
            assert_eq!(heard, "", "story {seed}, {fault:?}");
        }
        if is_cancelled {
            return;
        }
        let is_expected = match (fault, end) {
            (None | Repeats | NoFinish, ReplyEvent::Finished { reason, .. }) => {
                *reason == FinishReason::EndOfTurn
            }
            (None | Repeats | NoFinish, _) => false,
            (_, ReplyEvent::Failed(ReplyError::Remote { error, .. })) => match fault {
                Refused | CutBeforeToken | CutInEvent | CutInCharacter => {
                    matches!(error, RemoteError::Interrupted(_))
                }
                Busy => matches!(error, RemoteError::Busy { status: 429, .. }),
                Failed => matches!(error, RemoteError::Failed { status: 500, .. }),
                WrongModel => matches!(error, RemoteError::Refused { status: 404, .. }),
                WrongKind | BadJson | BadUtf8 => matches!(error, RemoteError::Protocol(_)),
                ErrorEvent => matches!(error, RemoteError::Failed { status: 503, .. }),
                SlowFirst => *error == RemoteError::TimedOut(TimeLimit::FirstToken),
                // On a busy machine the first token may be too late already.
                Stall => matches!(error, RemoteError::TimedOut(_)),
                Endless => matches!(error, RemoteError::TooLarge { .. } | RemoteError::TimedOut(_)),
                HugeLine => matches!(error, RemoteError::TooLarge { .. }),
                None | Repeats | NoFinish => false,
            },
            _ => false,
        };
        assert!(is_expected, "story {seed}, {fault:?}: {end:?}");
    }
}

impl Dice {
    fn clone_throw(&self, sides: u64) -> u64 {
        Self(self.0).throw(sides)
    }
}

/// The bytes in pieces of any size, without pauses.
fn pieces(all: Vec<u8>, seed: u64) -> Vec<Part> {
    let size = 1 + Dice::new(seed ^ 0x77).throw(all.len() as u64) as usize;
    all.chunks(size.max(16)).map(|piece| Part::Bytes(piece.to_vec())).collect()
}

fn stories() -> u64 {
    let number = std::env::var("WALLA_REMOTE_STORIES").ok();
    number.map_or(300, |number| number.parse().expect("a number of stories"))
}

/// Memory of this process that is in use now, in KiB.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// An ask in progress.
struct Open {
    story: Story,
    agent: AgentId,
    heard: String,
    /// Events until it is cancelled.
    cancel_after: Option<u64>,
    is_started: bool,
}

#[test]
fn each_story_ends_once_with_its_text() {
    let attempts: Arc<Mutex<HashMap<u64, usize>>> = Arc::default();
    let server = Server::start(move |request| {
        let seed: u64 = request.question().parse().unwrap();
        let mut attempts = attempts.lock().unwrap();
        let attempt = attempts.entry(seed).or_insert(0);
        *attempt += 1;
        Story::new(seed).response(*attempt - 1)
    });
    let mut options = options(&server);
    options.max_requests = 48;
    options.sizes.event_bytes = 64 << 10;
    options.sizes.reply_bytes = 64 << 10;
    // Only stories that end by them have short limits: on a busy machine others would too.
    let mut hasty = options.clone();
    hasty.limits.first_token = Duration::from_millis(1_500);
    hasty.limits.next_token = Duration::from_millis(400);
    let clients = [options, hasty].map(client);
    let places = |client: &RemoteClient| -> Vec<AgentId> {
        (0..64).map(|_| crate::client::add(client, AgentSpec::new(""))).collect()
    };
    let agents = clients.each_ref().map(places);
    let mut run = Run { clients, open: HashMap::new(), ended: HashSet::new(), calls: 0 };
    let (waits_before, mut sleeps) = (waits(), 0);
    let (count, start) = (stories(), Instant::now());
    let mut next = 0;
    let mut memory_begin = 0;
    while (run.ended.len() as u64) < count {
        while next < count {
            let is_busy = |agent: &AgentId| run.open.values().any(|open| open.agent == *agent);
            let of_story = &agents[usize::from(Story::new(next).times_out())];
            let Some(&agent) = of_story.iter().find(|agent| !is_busy(agent)) else { break };
            run.ask(agent, next);
            next += 1;
        }
        run.listen();
        if run.ended.len() as u64 == count / 4 && memory_begin == 0 {
            memory_begin = memory_kib();
        }
        assert!(start.elapsed() < Duration::from_secs(600), "{} stories are open", run.open.len());
        std::thread::sleep(Duration::from_micros(300));
        sleeps += 1;
    }
    // The lock of an allocator or of a queue may be held for a moment.
    let (calls, waits) = (run.calls, (waits() - waits_before).saturating_sub(sleeps));
    assert!(waits * 1_000 <= calls, "{waits} waits in {calls} calls");
    let grown = memory_kib().saturating_sub(memory_begin);
    assert!(grown < 64 << 10, "memory has grown by {grown} KiB");
    let elapsed = start.elapsed();
    println!("{count} stories in {elapsed:?}: {waits} waits in {calls} calls, {grown} KiB more");
}

struct Run {
    /// With long and with short limits.
    clients: [RemoteClient; 2],
    open: HashMap<ReplyId, Open>,
    ended: HashSet<u64>,
    calls: u64,
}

impl Run {
    /// Counts a call.
    fn counted<T>(&mut self, at: usize, call: impl FnOnce(&RemoteClient) -> T) -> T {
        self.calls += 1;
        call(&self.clients[at])
    }

    fn ask(&mut self, agent: AgentId, seed: u64) {
        let mut dice = Dice::new(seed ^ 0x5555);
        let cancel_after = (dice.throw(10) == 0).then(|| dice.throw(4));
        let reply_id = ReplyId::unique();
        let command = Command::ask(agent, reply_id, Prompt::Chat(seed.to_string()));
        let story = Story::new(seed);
        let at = usize::from(story.times_out());
        self.counted(at, |client| client.try_send(command)).unwrap();
        // Questions of earlier stories do not matter.
        let turns = Vec::new();
        let open = Open { story, agent, heard: String::new(), cancel_after, is_started: false };
        self.open.insert(reply_id, open);
        if cancel_after == Some(0) {
            self.counted(at, |client| client.try_send(Command::SetConversation { agent, turns }))
                .unwrap();
        }
    }

    fn listen(&mut self) {
        (0..2).for_each(|at| self.listen_to(at));
    }

    fn listen_to(&mut self, at: usize) {
        self.counted(at, EngineClient::frame);
        while let Some(event) = self.counted(at, EngineClient::try_recv) {
            let reply_id = event.reply_id;
            let open = self.open.get_mut(&reply_id).expect("an event behind the end of a reply");
            assert_eq!(event.agent, open.agent);
            match event.what {
                ReplyEvent::Started { .. } => {
                    assert!(!std::mem::replace(&mut open.is_started, true));
                }
                ReplyEvent::Delta { text, .. } => {
                    assert!(open.is_started);
                    open.heard.push_str(&text);
                }
                what if what.is_terminal() => {
                    let open = self.open.remove(&reply_id).expect("it is open");
                    open.story.check(&open.heard, &what);
                    assert!(self.ended.insert(open.story.seed));
                    continue;
                }
                other => panic!("{other:?}"),
            }
            if let Some(left) = &mut open.cancel_after {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    open.cancel_after = Option::None;
                    let agent = open.agent;
                    let cancel = Command::Cancel { agent, reply_id };
                    self.counted(at, |client| client.try_send(cancel)).unwrap();
                }
            }
        }
    }
}
