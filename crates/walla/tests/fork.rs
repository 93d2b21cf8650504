//! A process that forks: the child has the engine's memory and none of its threads.
#![cfg(all(unix, feature = "demo"))]

#[path = "../../walla_runtime/tests/common/own_thread.rs"]
mod own_thread;

use std::time::Duration;

use own_thread::waits;
use walla::{Agent, Engine, EngineOptions, EngineState, FinishReason, Reply, ReplyError};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        tokio::time::timeout(Duration::from_secs(120), future).await.expect("it never ends")
    })
}

/// Results of a child, as its exit code.
fn in_child(engine: Engine, agent: Agent, open: Reply) -> i32 {
    let new = agent.ask("Who are you?");
    for reply in [open, new] {
        let Err(ReplyError::EngineGone(reason)) = block_on(reply.finish()) else { return 1 };
        if !reason.contains("forked") {
            return 2;
        }
    }
    if !matches!(engine.state(), EngineState::Failed(_)) {
        return 3;
    }
    let before = waits();
    block_on(engine.stop());
    drop((agent, engine));
    // The drop of an engine that runs looks for its end hundreds of times.
    if waits() - before > 50 { 4 } else { 0 }
}

#[test]
#[expect(unsafe_code, reason = "std has no fork")]
fn asks_in_a_forked_child_end_with_an_error() {
    let options =
        EngineOptions { device: "cpu".into(), max_agents: Some(2), ..EngineOptions::demo() };
    let engine = block_on(Engine::start(options)).expect("it starts");
    let agent = engine.agent("You are Greta, the smith of Emberfall.");
    // In a pause, this reply is still open when the process forks.
    engine.set_paused(true);
    let odo = engine.agent("You are Odo.");
    let open = odo.ask("Who are you?");
    // SAFETY: the child takes no lock that another thread may hold, except the allocator's, which
    // glibc and musl reset in a fork, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = in_child(engine, agent, open);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 0));
    engine.set_paused(false);
    let end = block_on(open.finish()).expect("the parent's reply goes on");
    assert_eq!(end.reason, FinishReason::EndOfTurn);
    block_on(agent.ask("Who are you?").finish()).expect("the parent's agent answers");
}
