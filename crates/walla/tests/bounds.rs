//! Hosts that send without limit: memory is bounded, and a refusal returns the payload.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use walla::{AgentSpec, Engine, EngineOptions, Prompt, Reply, ReplyError, Speaker, Turn};

#[path = "api/host.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod host;

use host::{
    BlockingWaker, begun, block_dispatcher, eventually, held, options, soon, speaker, working,
};

/// Counts the allocated bytes and their maximum.
struct Counting;

static BYTES: AtomicI64 = AtomicI64::new(0);
static BYTES_MOST: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    let now = BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    BYTES_MOST.fetch_max(now, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "an allocator that counts")]
// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum number of bytes allocated during `work`.
async fn bytes_most<T>(work: impl Future<Output = T>) -> (T, i64) {
    let before = BYTES.load(Ordering::Relaxed);
    BYTES_MOST.store(before, Ordering::Relaxed);
    let done = work.await;
    (done, BYTES_MOST.load(Ordering::Relaxed) - before)
}

const MIB: i64 = 1 << 20;

fn turns(bytes: usize) -> Vec<Turn> {
    vec![Turn::new(Speaker::User, "x".repeat(bytes))]
}

/// One test in this file: the allocator counts for the whole process.
#[tokio::test]
async fn host_messages_take_bounded_memory() {
    asks_before_the_first_reply().await;
    large_asks().await;
    changes_while_the_dispatcher_is_blocked().await;
    agents_added_and_dropped_while_the_dispatcher_is_blocked().await;
}

/// The device is held. The host owns the replies; the rest is at most 4,096 times 4 KB and some
/// buffers.
async fn asks_before_the_first_reply() {
    const ASKS: usize = 300_000;
    let (engine, _clock) = held(EngineOptions { max_agents: Some(64), ..options() }).await;
    let agents: Vec<_> = (0..600).map(|seed| engine.agent_with(speaker(seed, 300))).collect();
    let mut replies: Vec<Reply> = Vec::with_capacity(ASKS);
    let ask = async {
        for n in 0..ASKS {
            replies.push(agents[n % agents.len()].ask("What do you sell, and how much is it?"));
        }
        eventually("the engine has them", || engine.stats().asks_waiting > 3_900).await;
    };
    let ((), most) = bytes_most(ask).await;
    assert!(most < 32 * MIB, "{} MiB for {ASKS} asks", most / MIB);
    let returned = agents[0].try_ask("One more?").expect_err("it is refused");
    assert_eq!(returned.prompt, Prompt::Chat("One more?".into()));
    let ReplyError::TooManyAsks { asks: 4_096, max_asks: 4_096, .. } = returned.reason else {
        panic!("{returned:?}");
    };
    // When a reply ends, another ask is accepted.
    replies[5].cancel();
    let mut late = None;
    eventually("there is room", || {
        late = agents[0].try_ask("One more?").ok();
        late.is_some()
    })
    .await;
    soon("it stops", engine.stop()).await;
    let (mut refused, mut gone, mut cancelled) = (0, 0, 0);
    for mut reply in replies.into_iter().chain(late) {
        match soon("the end", reply.next()).await {
            Some(Err(ReplyError::TooManyAsks { .. })) => refused += 1,
            Some(Err(ReplyError::EngineGone(_))) => gone += 1,
            None => cancelled += 1,
            other => panic!("{other:?}"),
        }
        assert!(soon("nothing follows", reply.next_event()).await.is_none());
    }
    assert_eq!((refused, gone, cancelled), (ASKS - 4_096, 4_096, 1));
}

async fn large_asks() {
    let builder = Engine::builder(options()).max_asks(100).max_ask_bytes(1_000_000);
    let engine = soon("it starts", builder.start()).await.unwrap();
    let agent = engine.agent_with(speaker(1, 300));
    // Accepted by the engine, and larger than the context.
    let text = "x".repeat(300_000);
    let ask = async { (0..1_000).map(|_| agent.ask(text.clone())).collect::<Vec<_>>() };
    let (replies, most) = bytes_most(ask).await;
    // 300 MB otherwise; the tokenizer needs some for the prompt that it encodes.
    assert!(most < 32 * MIB, "{} MiB", most / MIB);
    for reply in replies {
        soon("the end", reply.finish()).await.unwrap_err();
    }
    let too_large = agent.try_ask("x".repeat(1_000_001)).expect_err("larger than the bound");
    assert!(matches!(too_large.reason, ReplyError::TooManyAsks { asks: 1, bytes: 0, .. }));
    assert!(agent.try_ask("x").is_ok());
    soon("it stops", engine.stop()).await;
}

/// A waker of the host blocks the thread that reads messages.
async fn changes_while_the_dispatcher_is_blocked() {
    let (engine, clock) = held(options()).await;
    let agent = engine.agent_with(speaker(1, 20));
    let mut reply = agent.ask("Hello");
    begun(&mut reply).await;
    let blocker = Arc::new(BlockingWaker::default());
    block_dispatcher(&mut reply, &blocker, &clock).await;
    let change = async {
        for n in 0..300_000_u64 {
            agent.change(AgentSpec { persona: "x".repeat(1_000), ..speaker(n, 6) });
            agent.set_conversation(turns(1_000));
            reply.cancel();
            reply.cancel_heard(n as usize);
        }
        agent.change(speaker(7, 6));
        agent.set_conversation(turns(10));
    };
    let ((), most) = bytes_most(change).await;
    assert!(most < MIB, "{most} bytes for 300,000 changes");
    // The later conversation cancels an ask between the two, although the event loop has not read
    // either.
    let between = agent.ask("Between?");
    agent.set_conversation(turns(20));
    let after = agent.ask("After?");
    blocker.release();
    let end = working("it ends", &clock, between.finish()).await.unwrap();
    assert_eq!(end.reason, walla::FinishReason::Cancelled);
    let end = working("it ends", &clock, after.finish()).await.unwrap();
    assert_eq!(end.usage.reply_tokens, 6, "the latest change counts");
}

async fn agents_added_and_dropped_while_the_dispatcher_is_blocked() {
    let few = EngineOptions { max_agents: Some(2), max_agents_parked: 100, ..options() };
    let (engine, clock) = held(few).await;
    let agent = engine.agent_with(speaker(1, 20));
    let mut reply = agent.ask("Hello");
    begun(&mut reply).await;
    let blocker = Arc::new(BlockingWaker::default());
    block_dispatcher(&mut reply, &blocker, &clock).await;
    let asked_and_dropped = {
        let agent = engine.agent_with(speaker(2, 6));
        agent.ask("Who are you?")
    };
    let come_and_go = async {
        for _ in 0..300_000 {
            drop(engine.agent_with(AgentSpec { turns: turns(1_000), ..speaker(1, 6) }));
        }
    };
    let ((), most) = bytes_most(come_and_go).await;
    assert!(most < 4 * MIB, "{most} bytes for 300,000 agents");
    let nobody = engine.agent("You are nobody.");
    let refused = nobody.try_ask("Are you there?").expect_err("it was not added");
    assert_eq!(refused.reason, ReplyError::TooManyAgents { max_agents: 2 });
    let refused = soon("the end", nobody.ask("Are you there?").finish()).await;
    assert_eq!(refused, Err(ReplyError::TooManyAgents { max_agents: 2 }));
    blocker.release();
    let end = soon("the end", asked_and_dropped.finish()).await.unwrap();
    assert_eq!(end.reason, walla::FinishReason::Cancelled, "not: no such agent");
    let mut somebody = None;
    eventually("there is room for agents again", || {
        let agent = engine.agent_with(speaker(3, 6));
        let reply = agent.try_ask("Hello").ok();
        somebody = reply.map(|reply| (agent, reply));
        somebody.is_some()
    })
    .await;
    let (_agent, reply) = somebody.unwrap();
    let end = working("it ends", &clock, reply.finish()).await.unwrap();
    assert_eq!(end.usage.reply_tokens, 6);
}
