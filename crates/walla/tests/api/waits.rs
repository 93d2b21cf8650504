//! Waits: no host ever blocks.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use walla::{Engine, EngineOptions, FrameBudget, Registry};
use walla_cpu::CpuBackend;
use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions};
use walla_doubles::{FaultPlan, VirtualClock};

use crate::host::{
    BlockingWaker, begun, block_dispatcher, cpu, eventually, held, on, options, poll, soon,
    speaker, working,
};

/// A CPU backend that opens on command.
struct Closed {
    inner: CpuBackend,
    open: Mutex<Receiver<()>>,
    /// Dropped with the device thread, which owns all of this.
    _life: Arc<()>,
}

impl Closed {
    fn new() -> (Self, Sender<()>, Arc<()>) {
        let ((go, open), life) = (channel(), Arc::new(()));
        let of_backend = Arc::clone(&life);
        (Self { inner: cpu(), open: Mutex::new(open), _life: of_backend }, go, life)
    }
}

impl Backend for Closed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        self.inner.devices()
    }

    fn score(&self, info: &DeviceInfo) -> i32 {
        self.inner.score(info)
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        // An error means that the sender is gone.
        let _told = self.open.lock().unwrap().recv();
        self.inner.open(name, options)
    }
}

/// Threads whose wait for a device thread timed out.
static WAITED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records the message of such a thread, the only one of that module.
struct Messages;

impl Subscriber for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "walla_runtime::shell::engine"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let name = thread::current().name().unwrap_or_default().to_owned();
        WAITED.lock().unwrap().push(name);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn an_abandoned_load_is_joined_on_another_thread() {
    tracing::subscriber::set_global_default(Messages).unwrap();
    // Many, because it is a race of the host with the event loop which drops the last handle.
    let loads: Vec<_> = (0..32).map(|_| Closed::new()).collect();
    let (mut of_hosts, mut lives) = (Vec::new(), Vec::new());
    for (backend, go, life) in loads {
        let start = Engine::builder(options()).registry(Registry::new().with(backend)).start();
        let mut start = Box::pin(start);
        assert!(poll(start.as_mut(), Waker::noop()).is_pending());
        drop(start);
        of_hosts.push(go);
        lives.push(life);
    }
    eventually("somebody waited for each device that does not open", || {
        WAITED.lock().unwrap().len() >= lives.len()
    })
    .await;
    assert!(WAITED.lock().unwrap().iter().all(|name| name == "walla-async"), "{WAITED:?}");
    drop(of_hosts);
    let all_ended = || lives.iter().all(|life| Arc::strong_count(life) == 1);
    eventually("the device threads end", all_ended).await;
}

#[tokio::test]
async fn stop_waits_until_all_resources_are_freed() {
    let (backend, go, life) = Closed::new();
    go.send(()).unwrap();
    let builder = Engine::builder(options()).registry(Registry::new().with(backend));
    let engine = soon("it starts", builder.start()).await.unwrap();
    let agent = engine.agent_with(speaker(1, 400));
    let _reply = agent.ask("Hello");
    soon("it stops", engine.stop()).await;
    // The watchdog thread drops its handle of the backend when it sees the end.
    let given_back = async {
        while Arc::strong_count(&life) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("all is given back", given_back).await;
}

/// The load waits half-way for the device, and the device waits for the receiver of the progress.
#[tokio::test]
async fn progress_is_reported_while_the_model_loads() {
    let clock = VirtualClock::new();
    let plan = FaultPlan::new(0).delay_micros(1..=1).clock(&clock);
    let measured =
        EngineOptions { budget: FrameBudget::Time(Duration::from_millis(4)), ..options() };
    let (go, told) = channel();
    thread::spawn(move || {
        while told.recv().is_ok() {
            while told.try_recv() != Err(TryRecvError::Disconnected) {
                clock.advance(1);
                thread::sleep(Duration::from_micros(50));
            }
        }
    });
    let mut heard = Vec::new();
    let start = on(plan, measured).0.start_with_progress(|fraction| {
        heard.push(fraction);
        if fraction > 0.0 {
            go.send(()).unwrap();
        }
    });
    soon("it is loaded", start).await.unwrap();
    drop(go);
    assert!(heard.is_sorted() && heard.last() == Some(&1.0), "{heard:?}");
}

#[tokio::test]
async fn no_call_and_no_drop_waits_for_the_event_thread() {
    let (engine, clock) = held(options()).await;
    let agent = engine.agent_with(speaker(1, 20));
    let mut reply = agent.ask("Hello");
    begun(&mut reply).await;
    let blocker = Arc::new(BlockingWaker::default());
    block_dispatcher(&mut reply, &blocker, &clock).await;
    let (done, all_done) = channel();
    let host = thread::spawn({
        let engine = engine.clone();
        move || {
            let other = engine.agent_with(speaker(2, 20));
            drop((other.ask("Hello"), engine.agent("You are nobody.")));
            other.change(speaker(3, 6));
            other.set_conversation(Vec::new());
            reply.cancel();
            let asked = other.ask("Hello");
            engine.set_budget(Some(Duration::from_millis(3)));
            drop((agent, reply, engine));
            done.send((other, asked)).unwrap();
        }
    });
    let (_other, asked) = all_done.recv_timeout(Duration::from_secs(60)).expect("a host waits");
    host.join().unwrap();
    blocker.release();
    let end = working("it ends", &clock, asked.finish()).await.unwrap();
    assert_eq!(end.usage.reply_tokens, 6);
}
