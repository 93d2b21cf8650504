//! A client whose agents have memories, over an engine that records its commands.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walla_memory::{AgentRecall, Entry, Memory, Recall, RecallClient, RecallOptions};
use walla_runtime::{
    AgentId, AgentSpec, AskOptions, Capabilities, Command, EngineClient, EngineState, EngineStats,
    Event, FinishReason, Notes, Prompt, ReplyError, ReplyEvent, ReplyId, Speaker, TrySendError,
    Turn, Usage,
};

/// An engine that records commands, and finishes each ask at once.
#[derive(Clone, Default)]
struct Recorder {
    commands: Arc<Mutex<Vec<Command>>>,
    events: Arc<Mutex<VecDeque<Event>>>,
    /// Commands that the mailbox refuses.
    refuses: Arc<AtomicUsize>,
    is_closed: Arc<AtomicBool>,
}

impl EngineClient for Recorder {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(TrySendError::Closed(command));
        }
        let refuses = |left: usize| left.checked_sub(1);
        if self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuses).is_ok() {
            return Err(TrySendError::Full(command));
        }
        if let Command::Ask { agent, reply_id, .. } = command {
            let what =
                ReplyEvent::Finished { reason: FinishReason::EndOfTurn, usage: Usage::default() };
            self.events.lock().unwrap().push_back(Event { agent, reply_id, what });
        }
        self.commands.lock().unwrap().push(command);
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        self.events.lock().unwrap().pop_front()
    }

    fn frame(&self) {}

    fn state(&self) -> EngineState {
        if self.is_closed.load(Ordering::SeqCst) {
            EngineState::Stopped
        } else {
            EngineState::Ready
        }
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::LOCAL
    }

    fn stop(&self) {}
}

struct Rig {
    client: RecallClient,
    engine: Recorder,
    memory: Memory,
    agent: AgentId,
}

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// No search is late.
fn patient() -> RecallOptions {
    RecallOptions { max_time: LONG, ..RecallOptions::default() }
}

/// An agent with a memory.
fn rig(options: RecallOptions) -> Rig {
    let recall = Recall::new(options);
    let mut memory = Memory::default();
    for text in ["The player owes coal.", "The well is dry.", "It rained all night."] {
        drop(memory.add(Entry::new(text)).unwrap());
    }
    recall.update(&mut memory).unwrap();
    let engine = Recorder::default();
    let client = recall.client(engine.clone());
    let agent = AgentId::unique();
    client.try_send(Command::AddAgent { agent, spec: Box::new(AgentSpec::new("A")) }).unwrap();
    client.set_agent(agent, Some(AgentRecall::new([memory.key()])));
    Rig { client, engine, memory, agent }
}

impl Rig {
    fn ask(&self, prompt: Prompt) -> ReplyId {
        let reply_id = ReplyId::unique();
        self.client.try_send(Command::ask(self.agent, reply_id, prompt)).unwrap();
        reply_id
    }

    fn chat(&self, text: &str) -> ReplyId {
        self.ask(Prompt::Chat(text.into()))
    }

    /// Waits for the end of a reply.
    fn end(&self, wanted: ReplyId) -> ReplyEvent {
        let start = Instant::now();
        loop {
            match self.client.try_recv() {
                Some(event) if event.reply_id == wanted => return event.what,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(start.elapsed() < LONG, "no end");
        }
    }

    fn commands(&self) -> Vec<Command> {
        self.engine.commands.lock().unwrap().clone()
    }

    fn last_notes(&self) -> Vec<String> {
        match self.commands().pop() {
            Some(Command::Ask { options, .. }) => options
                .notes
                .map(|notes| notes.texts.iter().map(ToString::to_string).collect())
                .unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }
}

fn kind(command: &Command) -> &'static str {
    match command {
        Command::AddAgent { .. } => "add",
        Command::ChangeAgent { .. } => "change",
        Command::AppendTurns { .. } => "append",
        Command::SetConversation { .. } => "set",
        Command::ForkAgent { .. } => "fork",
        Command::RemoveAgent { .. } => "remove",
        Command::Ask { .. } => "ask",
        Command::Cancel { .. } => "cancel",
        _ => "other",
    }
}

#[test]
fn asks_carry_what_their_agent_knows() {
    let rig = rig(patient());
    rig.end(rig.chat("Who owes you coal?"));
    assert_eq!(rig.last_notes(), ["The player owes coal."]);
    rig.end(rig.chat("Nice weather."));
    assert_eq!(rig.last_notes(), [""; 0], "nothing matches");
    // Without a question, the latest appended turn is searched.
    let turns = vec![Turn::new(Speaker::Observation, "Someone looks into the well.")];
    rig.client.try_send(Command::AppendTurns { agent: rig.agent, turns }).unwrap();
    rig.end(rig.ask(Prompt::Continue));
    assert_eq!(rig.last_notes(), ["The well is dry."]);
    rig.end(rig.ask(Prompt::Again));
    assert_eq!(rig.last_notes(), ["The well is dry."]);
    rig.end(rig.ask(Prompt::Raw("The well".into())));
    assert_eq!(rig.last_notes(), [""; 0]);
    // An ask's own notes replace them, also notes without a text.
    let searches = rig.client.recall().stats().searches;
    for own in [&["The player smiles."][..], &[]] {
        let reply_id = ReplyId::unique();
        let options = AskOptions::notes(Notes::new(own.iter().copied()));
        let prompt = Prompt::Chat("And the coal?".into());
        rig.client.try_send(Command::Ask { agent: rig.agent, reply_id, prompt, options }).unwrap();
        rig.end(reply_id);
        assert_eq!(rig.last_notes(), own);
    }
    assert_eq!(rig.client.recall().stats().searches, searches);
    // Its text is the one of its repetition.
    rig.end(rig.ask(Prompt::Again));
    assert_eq!(rig.last_notes(), ["The player owes coal."]);
    rig.client.set_agent(rig.agent, None);
    rig.end(rig.chat("Who owes you coal?"));
    assert_eq!(rig.last_notes(), [""; 0]);
}

/// Entries that are written before an ask are found by it.
#[test]
fn an_ask_sees_the_entry_that_was_written_before_it() {
    let mut rig = rig(patient());
    for nth in 0..50 {
        let text = format!("The lantern number {nth} is broken.");
        drop(rig.memory.add(Entry::new(text.clone())).unwrap());
        rig.client.recall().update(&mut rig.memory).unwrap();
        rig.end(rig.chat(&format!("What about lantern {nth}?")));
        assert_eq!(rig.last_notes()[0], text);
    }
}

#[test]
fn commands_of_an_agent_keep_their_order() {
    let rig = rig(patient());
    let Rig { client, agent, .. } = &rig;
    let first = rig.chat("Who owes you coal?");
    let turns = vec![Turn::new(Speaker::Observation, "Rain.")];
    client.try_send(Command::AppendTurns { agent: *agent, turns }).unwrap();
    let fork = AgentId::unique();
    client.try_send(Command::ForkAgent { agent: fork, source: *agent, spec: None }).unwrap();
    let spec = Box::new(AgentSpec::new("B"));
    client.try_send(Command::ChangeAgent { agent: *agent, spec }).unwrap();
    let second = rig.chat("Is the well dry?");
    // Another agent does not wait.
    let other = AgentId::unique();
    client
        .try_send(Command::AddAgent { agent: other, spec: Box::new(AgentSpec::new("C")) })
        .unwrap();
    rig.end(first);
    rig.end(second);
    let kinds: Vec<_> =
        rig.commands().iter().filter(|its| its.agent() != other).map(kind).collect();
    assert_eq!(kinds, ["add", "ask", "append", "fork", "change", "ask"]);
}

#[test]
fn cancels_removals_and_edits_end_the_wait() {
    for end in ["cancel", "set", "remove"] {
        let rig = rig(patient());
        let agent = rig.agent;
        let reply_id = rig.chat("Who owes you coal?");
        let turns = Vec::new();
        let command = match end {
            "cancel" => Command::Cancel { agent, reply_id },
            "set" => Command::SetConversation { agent, turns },
            _ => Command::RemoveAgent { agent },
        };
        rig.client.try_send(command).unwrap();
        let kinds: Vec<_> = rig.commands().iter().map(kind).collect();
        assert_eq!(kinds, ["add", "ask", end], "at once, in order");
        rig.end(reply_id);
    }
}

/// Without a result in time an ask is sent as it is, and counted.
#[test]
fn a_late_search_delays_no_ask_for_long() {
    let rig = rig(RecallOptions { max_time: Duration::ZERO, ..RecallOptions::default() });
    for _ in 0..20 {
        rig.end(rig.chat("Who owes you coal?"));
    }
    let with_notes = rig
        .commands()
        .iter()
        .filter(
            |command| matches!(command, Command::Ask { options, .. } if options.notes.is_some()),
        )
        .count() as u64;
    assert_eq!(rig.client.recall().stats().late + with_notes, 20);
}

#[test]
fn full_and_closed_mailboxes_lose_nothing() {
    let rig = rig(patient());
    rig.engine.refuses.store(3, Ordering::SeqCst);
    let reply_id = rig.chat("Who owes you coal?");
    rig.end(reply_id);
    assert_eq!(rig.last_notes(), ["The player owes coal."], "the notes survive a full mailbox");
    let reply_id = rig.chat("Who owes you coal?");
    rig.engine.is_closed.store(true, Ordering::SeqCst);
    let end = rig.end(reply_id);
    assert!(matches!(end, ReplyEvent::Failed(ReplyError::EngineGone(_))), "{end:?}");
    let command = Command::ask(rig.agent, ReplyId::unique(), Prompt::Chat("coal".into()));
    assert!(matches!(rig.client.try_send(command), Err(TrySendError::Closed(_))));
}

#[test]
fn many_agents_ask_at_once_and_each_gets_its_own() {
    let rig = rig(patient());
    let mut memories = Vec::new();
    let mut asks = Vec::new();
    for nth in 0..200 {
        let agent = AgentId::unique();
        let spec = Box::new(AgentSpec::new("A"));
        rig.client.try_send(Command::AddAgent { agent, spec }).unwrap();
        let mut memory = Memory::default();
        drop(memory.add(Entry::new(format!("My secret is number {nth}."))).unwrap());
        rig.client.recall().update(&mut memory).unwrap();
        rig.client.set_agent(agent, Some(AgentRecall::new([memory.key()])));
        memories.push(memory);
        let reply_id = ReplyId::unique();
        let prompt = Prompt::Chat("Which secret?".into());
        rig.client.try_send(Command::ask(agent, reply_id, prompt)).unwrap();
        asks.push((agent, reply_id));
    }
    rig.end(asks.last().unwrap().1);
    let start = Instant::now();
    while rig.commands().len() < 401 {
        rig.client.frame();
        assert!(start.elapsed() < LONG);
    }
    let commands = rig.commands();
    for (nth, (of, _)) in asks.iter().enumerate() {
        let notes = commands.iter().find_map(|command| match command {
            Command::Ask { agent, options, .. } if agent == of => options.notes.clone(),
            _ => None,
        });
        let texts = notes.expect("it has notes").texts.clone();
        assert_eq!(*texts[0], *format!("My secret is number {nth}."));
    }
}

/// Limits that no clock can hold mean no limit.
#[test]
fn the_longest_times_are_no_problem() {
    let longest = Duration::MAX;
    let options = RecallOptions {
        max_time: longest,
        embed_budget: Some(longest),
        frame_time: Some(longest),
        ..RecallOptions::default()
    };
    let mut rig = rig(options);
    rig.client.recall().set_embedder(Some(crate::vectors::embedder("bert-mean-f32")));
    rig.client.set_now(longest);
    let mut entry = Entry::new("The player owes iron.");
    entry.time = longest;
    drop(rig.memory.add(entry).unwrap());
    rig.client.recall().update(&mut rig.memory).unwrap();
    for _ in 0..3 {
        let reply_id = rig.chat("Who owes you iron?");
        rig.client.recall().frame();
        rig.end(reply_id);
        assert_eq!(rig.last_notes()[0], "The player owes iron.");
    }
}

/// An ask whose vector comes too late has the entries that its words find.
#[test]
fn a_slow_embedding_model_costs_no_ask_its_words() {
    // On a busy machine the search itself may be late, so the times grow.
    let finds_words = |max_time: Duration| {
        let rig = rig(RecallOptions { max_time, ..RecallOptions::default() });
        // A budget without frames: the model never computes.
        let model = crate::vectors::embedder("bert-mean-f32");
        rig.client.recall().set_embedder(Some(model));
        rig.end(rig.chat("Who owes you coal?"));
        let stats = rig.client.recall().stats();
        if stats.late == 0 {
            assert_eq!(rig.last_notes(), ["The player owes coal."]);
            assert_eq!(stats.without_vector, 1);
        }
        stats.late == 0
    };
    for _ in 0..5 {
        assert!([200, 1_600, 12_800].into_iter().map(Duration::from_millis).any(finds_words));
    }
}

/// A rig whose searches wait for a vector until [`search_by_words`].
fn waiting_rig() -> Rig {
    let rig = rig(patient());
    wait_for_vectors(&rig);
    rig
}

fn wait_for_vectors(rig: &Rig) {
    // A budget without frames: the model never computes.
    let model = crate::vectors::embedder("bert-mean-f32");
    rig.client.recall().set_embedder(Some(model));
}

/// Ends the waits.
fn search_by_words(rig: &Rig) {
    rig.client.recall().set_embedder(None);
}

/// A copy waits for the asks before it, and the commands of the copy, of any kind, for the copy.
#[test]
fn commands_of_a_copy_follow_it() {
    let turn = || vec![Turn::new(Speaker::Observation, "Rain.")];
    for knows in [false, true] {
        let rig = waiting_rig();
        let Rig { client, agent: source, .. } = &rig;
        let send = |command: Command| client.try_send(command).unwrap();
        let first = rig.chat("Who owes you coal?");
        let [copy, second_copy, gone] = [(); 3].map(|()| AgentId::unique());
        let fork = |agent, source| send(Command::ForkAgent { agent, source, spec: None });
        fork(copy, *source);
        fork(second_copy, copy);
        fork(gone, *source);
        if knows {
            client.set_agent(copy, client.agent(*source));
        }
        let [cancelled, raw, last] = [(); 3].map(|()| ReplyId::unique());
        send(Command::AppendTurns { agent: copy, turns: turn() });
        send(Command::ask(copy, cancelled, Prompt::Chat("Who owes you coal?".into())));
        send(Command::Cancel { agent: copy, reply_id: cancelled });
        send(Command::SetConversation { agent: copy, turns: turn() });
        send(Command::ask(copy, raw, Prompt::Raw("The well".into())));
        send(Command::ask(second_copy, last, Prompt::Continue));
        send(Command::RemoveAgent { agent: gone });
        assert_eq!(rig.commands().len(), 1, "the agent alone");
        search_by_words(&rig);
        let mut open = [first, cancelled, raw, last].to_vec();
        let start = Instant::now();
        while !open.is_empty() {
            client.frame();
            if let Some(event) = client.try_recv() {
                open.retain(|of| *of != event.reply_id);
            }
            assert!(start.elapsed() < LONG, "{open:?}");
        }
        let commands = rig.commands();
        let kinds = |of: AgentId| -> Vec<_> {
            commands.iter().filter(|command| command.agent() == of).map(kind).collect()
        };
        assert_eq!(kinds(*source), ["add", "ask"]);
        assert_eq!(kinds(copy), ["fork", "append", "ask", "cancel", "set", "ask"]);
        assert_eq!(kinds(second_copy), ["fork", "ask"]);
        assert_eq!(kinds(gone), ["fork", "remove"]);
        let at = |of: AgentId| commands.iter().position(|command| command.agent() == of);
        assert!(at(copy) < at(second_copy), "a copy of a copy follows it");
    }
}

/// Commands of a copy that is never sent, because the engine ends, end too.
#[test]
fn asks_of_a_copy_end_with_the_engine() {
    let rig = waiting_rig();
    let first = rig.chat("Who owes you coal?");
    let (copy, second) = (AgentId::unique(), ReplyId::unique());
    let fork = Command::ForkAgent { agent: copy, source: rig.agent, spec: None };
    rig.client.try_send(fork).unwrap();
    rig.client.try_send(Command::ask(copy, second, Prompt::Chat("coal".into()))).unwrap();
    rig.engine.is_closed.store(true, Ordering::SeqCst);
    search_by_words(&rig);
    for reply_id in [first, second] {
        let end = rig.end(reply_id);
        assert!(matches!(end, ReplyEvent::Failed(ReplyError::EngineGone(_))), "{end:?}");
    }
}

/// A repetition searches the text of the ask that it repeats, also by a copy, and behind turns that
/// were appended since or loaded.
#[test]
fn a_repetition_searches_the_same_text() {
    let rig = rig(patient());
    let Rig { client, agent, .. } = &rig;
    let turn = |speaker, text: &str| Turn::new(speaker, text);
    let well = || turn(Speaker::Observation, "Someone looks into the well.");
    let again = |agent: AgentId| {
        let reply_id = ReplyId::unique();
        client.try_send(Command::ask(agent, reply_id, Prompt::Again)).unwrap();
        rig.end(reply_id);
        rig.last_notes()
    };
    rig.end(rig.chat("Who owes you coal?"));
    client.try_send(Command::AppendTurns { agent: *agent, turns: vec![well()] }).unwrap();
    assert_eq!(again(*agent), ["The player owes coal."]);
    let turns = vec![
        turn(Speaker::User, "Did it rain?"),
        turn(Speaker::Agent, "All night."),
        turn(Speaker::Agent, "And all day."),
        well(),
    ];
    // A copy with the turns of its agent, and one with its own.
    for spec in [None, Some(Box::new(AgentSpec { turns: turns.clone(), ..AgentSpec::new("A") }))] {
        let copy = AgentId::unique();
        let expected =
            if spec.is_some() { "It rained all night." } else { "The player owes coal." };
        client.try_send(Command::ForkAgent { agent: copy, source: *agent, spec }).unwrap();
        client.set_agent(copy, client.agent(*agent));
        assert_eq!(again(copy), [expected]);
    }
    client.try_send(Command::SetConversation { agent: *agent, turns: turns.clone() }).unwrap();
    assert_eq!(again(*agent), ["It rained all night."]);
    client.try_send(Command::SetConversation { agent: *agent, turns }).unwrap();
    rig.end(rig.ask(Prompt::Continue));
    assert_eq!(rig.last_notes(), ["The well is dry."]);
    // An agent that is known before it is added.
    let loaded = AgentId::unique();
    client.set_agent(loaded, client.agent(*agent));
    let turns = vec![turn(Speaker::User, "Who owes you coal?"), turn(Speaker::Agent, "Nobody.")];
    let spec = Box::new(AgentSpec { turns, ..AgentSpec::new("A") });
    client.try_send(Command::AddAgent { agent: loaded, spec }).unwrap();
    assert_eq!(again(loaded), ["The player owes coal."]);
}

/// An ask has the settings of its time, also if they change while its search runs.
#[test]
fn settings_change_from_the_next_ask_on() {
    let rig = waiting_rig();
    let Rig { client, agent, .. } = &rig;
    let known = client.agent(*agent).unwrap();
    let other = AgentRecall { heading: "Later:".into(), max_tokens: 1, ..known.clone() };
    for later in [None, Some(AgentRecall::new([])), Some(other)] {
        client.set_agent(*agent, Some(known.clone()));
        let reply_id = rig.chat("Who owes you coal?");
        client.set_agent(*agent, later.clone());
        search_by_words(&rig);
        rig.end(reply_id);
        wait_for_vectors(&rig);
        let Some(Command::Ask { options, .. }) = rig.commands().pop() else { panic!() };
        let notes = options.notes.expect("the ask was made before the change");
        assert_eq!((&notes.heading, notes.max_tokens), (&known.heading, known.max_tokens));
        assert_eq!(rig.last_notes(), ["The player owes coal."]);
        assert_eq!(client.agent(*agent), later);
    }
}
