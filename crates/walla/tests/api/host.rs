//! Engines for tests, and waits with a timeout.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use walla::{
    AgentSpec, Engine, EngineBuilder, EngineOptions, FrameBudget, ModelSource, Registry, Reply,
};
use walla::{EncodeOptions, ReplyEvent, Sampling, TokenMask};
use walla_cpu::{CpuBackend, CpuOptions};
use walla_doubles::faulty::FaultHandle;
use walla_doubles::synth::{self, Mixture, Model};
use walla_doubles::{FaultPlan, FaultyBackend, VirtualClock};

/// Timeout, longer than any of these tests takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

pub fn model() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).unwrap())
}

pub fn cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() })
}

/// No budget, so that nothing is measured at load.
pub fn options() -> EngineOptions {
    EngineOptions {
        device: "cpu".into(),
        context_tokens: 512,
        max_agents: Some(4),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(model()))
    }
}

pub fn on(plan: FaultPlan, options: EngineOptions) -> (EngineBuilder, FaultHandle) {
    let backend = FaultyBackend::new(cpu(), plan);
    let handle = backend.handle();
    (Engine::builder(options).registry(Registry::new().with(backend)), handle)
}

/// A free-running engine.
pub async fn engine() -> Engine {
    on(FaultPlan::new(0), options()).0.start().await.unwrap()
}

/// An engine that only runs a step or two whenever its clock advances.
pub async fn held(options: EngineOptions) -> (Engine, VirtualClock) {
    let clock = VirtualClock::new();
    let plan = FaultPlan::new(0).delay_micros(1..=1).clock(&clock);
    (on(plan, options).0.start().await.unwrap(), clock)
}

/// Generates exactly this many letters: its mask excludes tokens that end a reply.
pub fn speaker(seed: u64, tokens: u32) -> AgentSpec {
    static LETTERS: OnceLock<Arc<TokenMask>> = OnceLock::new();
    let letters = LETTERS.get_or_init(|| {
        let tokenizer = EngineOptions::new(ModelSource::Static(model())).tokenizer().unwrap();
        let letter = |letter: char| {
            tokenizer.encode(letter.encode_utf8(&mut [0; 4]), EncodeOptions::default()).unwrap()
        };
        let vocab = tokenizer.vocab_size() as u32;
        Arc::new(TokenMask::allow(vocab, ('a'..='z').flat_map(letter)).unwrap())
    });
    let sampling = Sampling::builder().seed(seed).temperature(2.0).allowed_tokens(letters.clone());
    AgentSpec {
        sampling: sampling.build().unwrap(),
        max_reply_tokens: tokens,
        ..AgentSpec::new("")
    }
}

/// Waits with a timeout, so that a test fails instead of hanging.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// The same for a condition that has to be polled.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "never happened: {what}");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

/// Lets the device work until the future is done.
pub async fn working<T>(what: &str, clock: &VirtualClock, future: impl Future<Output = T>) -> T {
    let work = async {
        loop {
            clock.advance(1);
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    };
    let done = async {
        tokio::select! {
            biased;
            done = future => done,
            () = work => unreachable!("it has no end"),
        }
    };
    soon(what, done).await
}

/// Waits until the prompt is encoded, which takes no device.
pub async fn begun(reply: &mut Reply) {
    let event = soon("a reply begins", reply.next_event()).await;
    assert!(matches!(event, Some(ReplyEvent::Started { .. })), "{event:?}");
}

/// Polls once.
pub fn poll<T>(future: impl Future<Output = T>, waker: &Waker) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

/// A waker that blocks its calling thread, and thereby everything that waits for that thread.
#[derive(Debug, Default)]
pub struct BlockingWaker {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl BlockingWaker {
    /// Whether it blocks a thread.
    pub fn is_blocking(&self) -> bool {
        self.state.lock().unwrap().0
    }

    pub fn release(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Wake for BlockingWaker {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        drop(self.changed.wait_while(state, |(_, gone)| !*gone).unwrap());
    }
}

/// Blocks the thread that forwards events in `blocker` as soon as the reply has text. The reply has
/// started.
pub async fn block_dispatcher(
    reply: &mut Reply,
    blocker: &Arc<BlockingWaker>,
    clock: &VirtualClock,
) {
    let waker = Waker::from(Arc::clone(blocker));
    assert!(poll(reply.next_event(), &waker).is_pending());
    eventually("it speaks", || {
        clock.advance(1);
        blocker.is_blocking()
    })
    .await;
}
