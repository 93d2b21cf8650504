//! A process that forks: the child has the engine's memory and none of its threads.
#![cfg(all(unix, feature = "demo"))]

mod common;

use std::time::{Duration, Instant};

use common::own_thread::waits;
use walla_runtime::{
    AgentSpec, Client, Command, Engine, EngineError, EngineOptions, EngineState, Pacing, Prompt,
    ReplyEvent, TrySendError,
};

fn ask(client: &Client) -> Command {
    let agent = client.new_agent();
    let spec = Box::new(AgentSpec { max_reply_tokens: 3, ..AgentSpec::new("") });
    client.try_send(Command::AddAgent { agent, spec }).expect("room");
    let prompt = Prompt::Raw("Once upon a time".into());
    Command::ask(agent, client.new_reply_id(), prompt)
}

/// Checks in the child. Returns its exit code.
fn in_child(engine: Engine, client: Client, command: Command) -> i32 {
    if !matches!(client.try_send(command), Err(TrySendError::Closed(_))) {
        return 1;
    }
    let is_forked = |error: &EngineError| matches!(error, EngineError::Forked);
    if !matches!(engine.state(), EngineState::Failed(error) if is_forked(&error)) {
        return 2;
    }
    if engine.client(Pacing::FreeRunning).is_ok() || !engine.is_ended() {
        return 3;
    }
    let before = waits();
    drop((client, engine));
    // The drop of an engine that runs looks for its end hundreds of times.
    if waits() - before > 20 { 4 } else { 0 }
}

#[test]
#[expect(unsafe_code, reason = "std has no fork")]
fn asks_in_a_forked_child_are_refused_and_the_parent_continues() {
    let options = EngineOptions { max_agents: Some(4), ..EngineOptions::demo() };
    let engine = Engine::start(options).expect("it starts");
    let client = engine.client(Pacing::FreeRunning).expect("a place");
    let first = ask(&client);
    // SAFETY: the child calls functions of this test and `_exit`. It takes no lock that another
    // thread may hold, except for the allocator's, which glibc and musl reset in a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = in_child(engine, client, first);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 0));
    client.try_send(first).expect("room");
    let start = Instant::now();
    loop {
        match client.try_recv().map(|event| event.what) {
            Some(ReplyEvent::Finished { .. }) => break,
            Some(ReplyEvent::Failed(error)) => panic!("{error}"),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the parent is silent");
    }
}
