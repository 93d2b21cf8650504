//! A file with the cache of an agent, loaded into an engine.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use walla_doubles::synth::{self, Mixture, Model};
use walla_runtime::{
    AgentId, AgentSpec, CacheCopied, CacheError, CacheJob, CacheTicket, Client, Command, Engine,
    EngineOptions, EngineState, Event, FrameBudget, ModelSource, Pacing, Prompt, ReplyEvent,
};
use walla_types::{Sampling, TokenId};

/// Maximum time of a copy or a reply.
const PATIENCE: Duration = Duration::from_secs(120);

fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "no end");
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// An engine with a small random model.
fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let model = synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).expect("a vector");
        let options = EngineOptions {
            device: "cpu".into(),
            threads: Some(1),
            context_tokens: 128,
            max_agents: Some(2),
            budget: FrameBudget::Unlimited,
            background_prefill: false,
            ..EngineOptions::new(ModelSource::Static(model.leak()))
        };
        let engine = Engine::start(options).expect("the options are valid");
        let client = engine.client(Pacing::FreeRunning).expect("the first client");
        wait(|| match engine.state() {
            EngineState::Loading { .. } => None,
            state => {
                assert!(matches!(state, EngineState::Ready), "{state:?}");
                Some(())
            }
        });
        client
    })
}

fn send(command: Command) {
    let mut command = Some(command);
    wait(|| match client().try_send(command.take()?) {
        Ok(()) => Some(()),
        Err(refused) => {
            command = Some(refused.into_inner());
            None
        }
    });
}

fn agent() -> AgentId {
    let agent = client().new_agent();
    let spec =
        AgentSpec { sampling: Sampling::greedy(), max_reply_tokens: 4, ..AgentSpec::new("") };
    send(Command::AddAgent { agent, spec: Box::new(spec) });
    agent
}

/// The text of a reply to 40 tokens.
fn ask(agent: AgentId) -> String {
    let reply_id = client().new_reply_id();
    let prompt = Prompt::Tokens((256..296).map(TokenId).collect());
    send(Command::ask(agent, reply_id, prompt));
    let mut text = String::new();
    wait(|| match client().try_recv() {
        Some(Event { what: ReplyEvent::Delta { text: more, .. }, .. }) => {
            text.push_str(&more);
            None
        }
        Some(Event { what: ReplyEvent::Finished { .. }, .. }) => Some(()),
        Some(Event { what: ReplyEvent::Failed(error), .. }) => panic!("{error}"),
        _ => None,
    });
    text
}

fn copy(agent: AgentId, (ticket, job): (CacheTicket, CacheJob)) -> (Copied, CacheJob) {
    send(Command::CopyCache { agent, ticket });
    (wait(|| job.result()), job)
}

type Copied = Result<CacheCopied, CacheError>;

/// A file that can be loaded, behind a byte that leaves its checksums.
pub fn seed() -> Vec<u8> {
    let agent = agent();
    ask(agent);
    let (copied, job) = copy(agent, CacheTicket::save_bytes());
    copied.expect("it is saved");
    send(Command::RemoveAgent { agent });
    [vec![0], job.take_bytes().expect("a file")].concat()
}

/// CRC-32 (IEEE 802.3, reflected), bit by bit.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    let bit = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), bit);
    (!bytes.iter().fold(u32::MAX, byte)).to_le_bytes()
}

/// Writes the checksums of header and contents, and the length of the file.
fn correct(file: &mut [u8]) {
    let length = (file.len() as u64).to_le_bytes();
    if let Some(place) = file.get_mut(16..24) {
        place.copy_from_slice(&length);
    }
    let header = file.get(12..16).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let Some(header) = header.filter(|header| (20..file.len()).contains(header)) else { return };
    for range in [0..header - 4, header..file.len().saturating_sub(4)] {
        if let Some(sum) = file.get(range.clone()).map(checksum)
            && let Some(place) = file.get_mut(range.end..range.end + 4)
        {
            place.copy_from_slice(&sum);
        }
    }
}

/// Loads the file, with corrected checksums if the first byte is odd. The load is complete or an
/// error, and the agent speaks; another agent speaks as ever.
pub fn cache_file(data: &[u8]) {
    static EXPECTED: OnceLock<String> = OnceLock::new();
    let expected = EXPECTED.get_or_init(|| {
        let other = agent();
        let text = ask(other);
        send(Command::RemoveAgent { agent: other });
        text
    });
    let Some((&options, file)) = data.split_first() else { return };
    let mut file = file.to_vec();
    if options & 1 == 1 {
        correct(&mut file);
    }
    let loader = agent();
    match copy(loader, CacheTicket::load_bytes(file)).0 {
        Ok(copied) => assert!(copied.tokens <= 128, "{copied:?}"),
        Err(error) => assert!(matches!(error, CacheError::File(_)), "{error}"),
    }
    let text = ask(loader);
    assert!(text.len() < 1_000, "{text}");
    send(Command::RemoveAgent { agent: loader });
    // In pages that the file's contents were in.
    let other = agent();
    assert_eq!(&ask(other), expected);
    send(Command::RemoveAgent { agent: other });
}
