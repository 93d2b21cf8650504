//! Seeded stories: random routes, asks, cancels and faults. Each ask ends once, and each engine
//! sees the conversation that the host has seen.

use std::collections::HashMap;
use std::time::Duration;

use crate::talker::{Conduct, Random, Seen, Talker};
use walla_router::{HealthRules, Router, RouterOptions};
use walla_runtime::{
    AfterFailure, AgentId, AgentSpec, AskOptions, Command, EngineClient, Event, FinishReason,
    Prompt, ReplyEvent, ReplyId, ReplyInProgress, Route, Speaker, Turn,
};

/// Something in the conversation of an agent, as its host remembers it.
#[derive(Clone, Debug)]
enum Item {
    Turn(String),
    Ask(ReplyId, String),
}

#[derive(Default, Debug)]
struct Reply {
    starts: u32,
    text: String,
    end: Option<ReplyEvent>,
    /// The conversation before it, by the order of the host's commands.
    before: Vec<Item>,
}

struct Story {
    random: Random,
    router: Router,
    talkers: Vec<Talker>,
    agents: Vec<(AgentId, Vec<Item>, bool)>,
    replies: HashMap<ReplyId, Reply>,
    events: Vec<Event>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn conduct(random: &mut Random) -> Conduct {
    match random.next_u64() % 10 {
        0 => Conduct::Stall,
        1 | 2 => Conduct::Fail(0),
        3 => Conduct::Fail(1 + (random.next_u64() % 3) as u32),
        4 => Conduct::Speak(0),
        _ => Conduct::Speak(1 + (random.next_u64() % 4) as u32),
    }
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut options = RouterOptions::new("a");
        let wait = Duration::from_micros(300);
        options.health = HealthRules { max_failures: 2, wait, max_wait: 4 * wait, probes: 1 };
        let router = Router::new(options);
        let talkers: Vec<_> = NAMES.into_iter().map(Talker::new).collect();
        for (at, (name, talker)) in NAMES.into_iter().zip(&talkers).enumerate() {
            let mut random = Random::new(seed * 10 + at as u64 + 1);
            talker.set(|inner| inner.conduct = Box::new(move || conduct(&mut random)));
            router.engines().add(name, talker.client()).expect("new");
        }
        let random = Random::new(seed * 10);
        let (agents, replies, events) = (Vec::new(), HashMap::new(), Vec::new());
        Self { random, router, talkers, agents, replies, events }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    fn spec(&mut self) -> Box<AgentSpec> {
        let name = |at: u64| *NAMES.get(at as usize).unwrap_or(&"missing");
        let mut route = Route::engine(name(self.draw(4)));
        if self.draw(3) > 0 {
            let limit = Duration::from_micros(100 + self.draw(400));
            let limit = (self.draw(4) > 0).then_some(limit);
            route = route.or(name(self.draw(4)), limit);
        }
        if self.draw(2) == 0 {
            route.after_failure = AfterFailure::Continue;
        }
        if self.draw(2) == 0 {
            route.reply_in_progress = ReplyInProgress::Cancel;
        }
        let mut spec = AgentSpec::new("p");
        spec.route = route;
        Box::new(spec)
    }

    fn send(&mut self, command: Command) {
        let mut command = command;
        while let Err(refused) = self.router.try_send(command) {
            command = refused.into_inner();
            self.frame();
        }
    }

    fn act(&mut self) {
        if self.agents.is_empty() || (self.agents.len() < 4 && self.draw(8) == 0) {
            let (agent, spec) = (AgentId::unique(), self.spec());
            self.agents.push((agent, Vec::new(), false));
            return self.send(Command::AddAgent { agent, spec });
        }
        let at = self.draw(self.agents.len() as u64) as usize;
        let (agent, text) = (self.agents[at].0, format!("t{}", self.random.next_u64() % 1_000));
        let turns = vec![Turn::new(Speaker::Observation, text.clone())];
        match self.draw(20) {
            0..8 => {
                let (reply_id, options) = (ReplyId::unique(), AskOptions::default());
                let before = self.agents[at].1.clone();
                self.replies.insert(reply_id, Reply { before, ..Reply::default() });
                self.agents[at].1.push(Item::Ask(reply_id, text.clone()));
                let prompt = Prompt::Chat(text);
                self.send(Command::Ask { agent, reply_id, prompt, options });
            }
            8..10 => {
                self.agents[at].1.push(Item::Turn(text));
                self.send(Command::AppendTurns { agent, turns });
            }
            10 => {
                self.agents[at].1 = vec![Item::Turn(text)];
                self.send(Command::SetConversation { agent, turns });
            }
            11..13 => {
                let open = |reply: &&ReplyId| self.replies[*reply].end.is_none();
                let mut open: Vec<_> = self.replies.keys().filter(open).copied().collect();
                open.sort();
                if let Some(&reply_id) = open.get(at % open.len().max(1)) {
                    // Without effect if the reply is not of this agent.
                    self.send(Command::Cancel { agent, reply_id });
                }
            }
            13..16 => {
                let spec = self.spec();
                self.send(Command::ChangeAgent { agent, spec });
            }
            16 => {
                self.agents[at].2 = true;
                self.send(Command::RemoveAgent { agent });
                self.agents.swap_remove(at);
            }
            17 => {
                let talker = at % self.talkers.len();
                let refusals = self.draw(6) as u32;
                self.talkers[talker].set(|inner| inner.refusals = refusals);
            }
            18 if self.draw(4) == 0 => self.replace(),
            _ => std::thread::sleep(Duration::from_micros(150)),
        }
    }

    /// Removes, replaces or ends an engine.
    fn replace(&mut self) {
        let at = self.draw(3) as usize;
        let engines = self.router.engines().clone();
        let new = Talker::new(NAMES[at]);
        let mut random = Random::new(self.random.next_u64());
        new.set(|inner| inner.conduct = Box::new(move || conduct(&mut random)));
        match self.draw(3) {
            0 => {
                let setting = [ReplyInProgress::Finish, ReplyInProgress::Cancel];
                engines.remove(NAMES[at], setting[self.draw(2) as usize]).expect("exists");
                engines.add(NAMES[at], new.client()).expect("removed");
            }
            1 => engines.replace(NAMES[at], new.client()).expect("exists"),
            _ => {
                self.talkers
                    .iter()
                    .filter(|talker| talker.name() == NAMES[at])
                    .for_each(Talker::die);
                engines.replace(NAMES[at], new.client()).expect("exists");
            }
        }
        self.talkers.push(new);
    }

    fn frame(&mut self) {
        self.router.frame();
        let most = 1 + self.draw(9) as usize;
        while self.router.try_recv_many(most, &mut self.events) > 0 {}
        for Event { reply_id, what, .. } in self.events.drain(..) {
            let reply = self.replies.get_mut(&reply_id).expect("asked");
            assert!(reply.end.is_none(), "an event after the end: {what:?}");
            match what {
                ReplyEvent::Started { .. } => reply.starts += 1,
                ReplyEvent::Delta { text, .. } => reply.text.push_str(&text),
                end if end.is_terminal() => reply.end = Some(end),
                _ => {}
            }
            assert!(reply.starts <= 1 && (reply.starts == 1 || reply.text.is_empty()));
        }
    }

    /// The conversation, with the exchanges whose replies count.
    fn texts(&self, items: &[Item]) -> Vec<String> {
        let mut texts = Vec::new();
        for item in items {
            match item {
                Item::Turn(text) => texts.push(text.clone()),
                Item::Ask(reply_id, question) => {
                    let reply = &self.replies[reply_id];
                    let end = reply.end.as_ref().expect("ended before the next one began");
                    let is_finished = matches!(
                        end,
                        ReplyEvent::Finished { reason, .. } if *reason != FinishReason::Cancelled
                    );
                    if reply.starts == 1 && (is_finished || !reply.text.is_empty()) {
                        texts.extend([question.clone(), reply.text.clone()]);
                    }
                }
            }
        }
        texts
    }

    fn run(&mut self) {
        for _ in 0..120 {
            self.act();
            if self.draw(3) > 0 {
                self.frame();
            }
        }
        // Every stalled reply is cancelled.
        for talker in &self.talkers {
            talker.set(|inner| inner.refusals = 0);
        }
        for round in 0..400 {
            self.frame();
            if round % 20 == 19 {
                let agents: Vec<_> = self.agents.iter().map(|(agent, ..)| *agent).collect();
                let open = |(_, reply): &(&ReplyId, &Reply)| reply.end.is_none();
                let open: Vec<_> = self.replies.iter().filter(open).map(|(id, _)| *id).collect();
                if open.is_empty() {
                    break;
                }
                for agent in agents {
                    for &reply_id in &open {
                        self.send(Command::Cancel { agent, reply_id });
                    }
                }
            }
        }
        let without_end = self.replies.values().filter(|reply| reply.end.is_none()).count();
        assert_eq!(without_end, 0, "asks without an end");
        let seen: Vec<Seen> = self.talkers.iter().flat_map(Talker::seen).collect();
        for seen in seen {
            let reply = &self.replies[&seen.reply_id];
            assert_eq!(seen.turns, self.texts(&reply.before), "{seen:?}");
            if let Some(opening) = &seen.opening {
                assert!(reply.text.starts_with(opening.as_str()));
            }
        }
    }
}

/// `WALLA_ROUTER_STORIES`: their number.
#[test]
fn each_ask_ends_once_and_each_engine_sees_the_whole_conversation() {
    let stories = std::env::var("WALLA_ROUTER_STORIES").ok();
    let stories = stories.and_then(|number| number.parse().ok()).unwrap_or(300);
    for seed in 1..=stories {
        let story = std::panic::catch_unwind(|| Story::new(seed).run());
        assert!(story.is_ok(), "story {seed}");
    }
}
