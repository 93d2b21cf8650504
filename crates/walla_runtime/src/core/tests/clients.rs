//! Seeded simulations of several clients of one core, in the style of
//! [`simulation`](super::simulation).
//!
//! The hosts are free running or grant frames at different rates. They join and leave, pause, read
//! no events or grant no frames for a while. Their agents share 1 to 8 slots and few pages. In the
//! middle of each simulation some clients stall until all replies of the others have ended.
//!
//! Each simulation must show:
//!
//! - every event is sent to the client that asked, once, and none to a client that has left;
//! - every reply ends exactly once; it times out only if there is a deadline for replies or its
//!   client has stalled for [`END_MICROS`];
//! - every token is the one that the device draws for these tokens alone;
//! - deltas join to the decoding of the tokens;
//! - an idle core has nothing to do: a second call of `advance` changes nothing;
//! - liveness: with a budget and without pauses, a client that reads events and grants frames gets
//!   an event or a step within [`Client::max_silence_micros`] while it has an open reply, also
//!   while other clients stall. While none stalls, the core makes progress within
//!   [`MAX_SILENCE_MICROS`];
//! - every page is returned.
//!
//! `WALLA_CLIENT_SIMULATION_SEEDS=FIRST..END` runs other seeds than the default ones.

mod actions;
mod checks;

use std::ops::Range;
use std::time::Duration;

use super::simulation_kit::{
    MAX_ADVANCES, MAX_SILENCE_MICROS, Named, Setting, check_tokens, describe, run_all, seeds,
};
use super::*;
use crate::api::{Speaker, Turn};
use crate::core::stalls::END_MICROS;
use crate::engine_core::Control;

/// Sets other seeds.
const VARIABLE: &str = "WALLA_CLIENT_SIMULATION_SEEDS";

/// Default seeds.
const SEEDS: Range<u64> = 0..150;

/// Maximum number of clients at a time. Keys of clients that have left are used again.
const MAX_CLIENTS: u32 = 4;

/// Maximum number of agents at a time.
const MAX_AGENTS: usize = 14;

/// Frames per grant of the slowest client.
const MAX_GRANT_FRAMES: u32 = 5;

/// Maximum virtual time of one reply in a slot, in microseconds: 168 steps, one per grant. A device
/// on which only one row fits in `max_launch` evaluates a prompt of 128 tokens row by row.
const MAX_REPLY_MICROS: u64 = 168 * MAX_GRANT_FRAMES as u64 * FRAME_MICROS;

/// Maximum frames between the last action and the end of all replies.
const MAX_FRAMES_TO_END: u32 = 90_000;

/// An hour without a frame.
const HOUR_MICROS: u64 = 3_600_000_000;

/// One host.
#[derive(Debug)]
struct Client {
    key: ClientKey,
    pacing: Pacing,
    /// Events that it still takes.
    room: usize,
    is_paused: bool,
    grants: bool,
    /// It grants a frame in every frame with a number that this divides.
    grant_frames: u32,
    /// Events that it has taken.
    events: u64,
    /// Latest progress: events and the last step with one of its agents.
    progress: (u64, u64),
    progress_micros: u64,
    /// Open replies of all clients at that time.
    open: u64,
    /// Latest frame in which its agents could be scheduled.
    able_micros: u64,
    /// Whether it has stalled long enough to lose a reply.
    has_stalled: bool,
}

impl Client {
    /// Whether it reads events and grants the frames that its pacing needs.
    fn does_its_part(&self) -> bool {
        self.room > 0 && (self.grants || self.pacing == Pacing::FreeRunning)
    }

    fn grants_in(&self, frame: u32) -> bool {
        self.grants && frame.is_multiple_of(self.grant_frames)
    }

    /// Called before a frame: a stall may last until the frame's end.
    fn count_stall(&mut self, begin_micros: u64) {
        self.has_stalled |= begin_micros + FRAME_MICROS - self.able_micros >= END_MICROS;
    }

    /// Called after a frame: a queue with room left has taken all events.
    fn end_stall(&mut self, frame: u32, begin_micros: u64) {
        if self.room > 0 && (self.pacing == Pacing::FreeRunning || self.grants_in(frame)) {
            self.able_micros = begin_micros;
        }
    }

    /// Maximum virtual time without an event or a step for this client, in microseconds. It may
    /// wait for the slot of a stalled client, and for all replies that are older than its own.
    fn max_silence_micros(&self) -> u64 {
        2 * END_MICROS + MAX_SILENCE_MICROS + self.open * MAX_REPLY_MICROS
    }

    fn resume(&mut self) {
        (self.room, self.grants) = (usize::MAX, true);
    }
}

/// A core in virtual time, its clients and their events.
struct Simulation {
    setting: Setting,
    core: Core,
    clients: Vec<Client>,
    /// Keys of clients that have left since the last call of `advance`.
    left: Vec<ClientKey>,
    /// Agents that have not been removed, with their clients.
    agents: Vec<(AgentId, ClientKey)>,
    /// Everything that was asked by clients that have not left.
    asks: Vec<(AgentId, ReplyId)>,
    heard: HashMap<ReplyId, Heard>,
    /// The reply of each agent that started last.
    started: HashMap<AgentId, ReplyId>,
    /// Replies that ended in this frame.
    ended: Vec<(AgentId, ReplyId)>,
    names: u64,
    frames: u32,
    has_fallen_back: bool,
    is_budget_zero: bool,
    log: String,
    /// The device thread sleeps until then, unless a host wakes it.
    sleeps_until_micros: u64,
    /// Latest progress of the core, and the time of its last change.
    progress: (u64, u64, usize),
    progress_micros: u64,
}

// Hosts.
impl Simulation {
    fn new(seed: u64) -> Self {
        let mut setting = Setting::new(seed);
        let Setting { draws, options, .. } = &mut setting;
        options.max_agents = Some(draws.pick(&[1, 2, 3, 8]));
        options.max_agents_parked = draws.pick(&[4, 100]);
        options.wait_for_slot = !draws.one_in(5);
        if draws.one_in(5) {
            options.budget = FrameBudget::Time(Duration::ZERO);
        }
        let is_budget_zero = options.budget == FrameBudget::Time(Duration::ZERO);
        let core = setting.load();
        let mut simulation = Self {
            setting,
            core,
            clients: Vec::new(),
            left: Vec::new(),
            agents: Vec::new(),
            asks: Vec::new(),
            heard: HashMap::new(),
            started: HashMap::new(),
            ended: Vec::new(),
            names: 0,
            frames: 0,
            has_fallen_back: false,
            is_budget_zero,
            log: String::new(),
            sleeps_until_micros: 0,
            progress: (0, 0, 0),
            progress_micros: 0,
        };
        simulation.join();
        simulation.join();
        simulation
    }

    fn draw(&mut self, below: u32) -> u32 {
        self.setting.draws.draw(below)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        self.setting.draws.pick(of)
    }

    fn one_in(&mut self, many: u32) -> bool {
        self.setting.draws.one_in(many)
    }

    fn now_micros(&self) -> u64 {
        self.setting.clock.now_micros()
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    /// A new client with a free key.
    fn join(&mut self) {
        let is_used = |key: &ClientKey| {
            self.left.contains(key) || self.clients.iter().any(|client| client.key == *key)
        };
        let Some(key) = (0..MAX_CLIENTS).map(ClientKey).find(|key| !is_used(key)) else { return };
        let pacing = self.setting.draws.pacing();
        self.core.add_client(key, pacing);
        self.sleeps_until_micros = 0;
        let grant_frames = self.pick(&[1, 1, 2, MAX_GRANT_FRAMES]);
        self.clients.push(Client {
            key,
            pacing,
            room: usize::MAX,
            is_paused: false,
            grants: true,
            grant_frames,
            events: 0,
            progress: (0, 0),
            progress_micros: self.now_micros(),
            open: 0,
            able_micros: self.now_micros(),
            has_stalled: false,
        });
    }

    /// A client leaves with its agents and open replies. It receives no more of their events.
    fn leave(&mut self, place: usize) {
        let key = self.clients.remove(place).key;
        self.core.remove_client(key);
        self.sleeps_until_micros = 0;
        self.agents.retain(|&(_, client)| client != key);
        let Self { asks, heard, .. } = self;
        asks.retain(|(_, reply_id)| heard[reply_id].client != Some(key));
        heard.retain(|_, reply| reply.client != Some(key));
        self.left.push(key);
    }

    fn command(&mut self, client: ClientKey, command: Command) {
        let now_micros = self.now_micros();
        self.core.command(client, command, now_micros);
        self.sleeps_until_micros = 0;
    }

    fn add_agent(&mut self, client: ClientKey) -> AgentId {
        let agent = AgentId(self.name());
        let spec = Box::new(self.setting.draws.spec());
        self.command(client, Command::AddAgent { agent, spec });
        self.agents.push((agent, client));
        agent
    }

    fn ask(&mut self, client: ClientKey, agent: AgentId) {
        let reply_id = ReplyId(self.name());
        let prompt = self.setting.draws.prompt();
        self.heard.insert(reply_id, Heard { client: Some(client), ..Heard::default() });
        self.asks.push((agent, reply_id));
        self.command(client, Command::ask(agent, reply_id, prompt));
    }

    fn ask_new_agent(&mut self, place: usize) {
        let client = self.clients[place].key;
        let agent = self.add_agent(client);
        self.ask(client, agent);
    }

    fn control(&mut self, control: Control) {
        self.sleeps_until_micros = 0;
        self.core.control(control);
    }

    fn pause(&mut self, place: usize, is_paused: bool) {
        self.clients[place].is_paused = is_paused;
        self.core.set_paused(self.clients[place].key, is_paused);
        self.sleeps_until_micros = 0;
    }

    fn set_budget(&mut self, micros: Option<u64>) {
        self.is_budget_zero = micros == Some(0);
        self.control(Control::Budget(micros.map(Duration::from_micros).into()));
    }
}

// The parts of a simulation.
impl Simulation {
    /// Runs the simulation until the last page is returned. Returns the log of all events.
    fn run(mut self) -> String {
        for _ in 0..120 {
            for _ in 0..3 {
                self.act();
            }
            self.frame();
        }
        self.stall_some_clients();
        self.end_all_replies();
        self.return_all_pages();
        self.log
    }

    /// All clients but the first stall or not, until the others have no open reply.
    fn stall_some_clients(&mut self) {
        // With a small budget the queue of a single slot takes minutes.
        self.set_budget(None);
        if self.one_in(2) {
            self.control(Control::KvTokens(16 * 9));
        }
        for place in 0..self.clients.len() {
            self.pause(place, false);
            self.clients[place].resume();
            self.ask_new_agent(place);
        }
        for _ in 0..self.draw(10) {
            self.frame();
        }
        for place in 1..self.clients.len() {
            match self.draw(3) {
                0 => self.clients[place].room = 0,
                1 => self.clients[place].grants = false,
                _ => {}
            }
        }
        self.ask_new_agent(0);
        self.run_until_ended("clients that do their part", Client::does_its_part);
    }

    fn end_all_replies(&mut self) {
        self.clients.iter_mut().for_each(Client::resume);
        self.sleeps_until_micros = 0;
        self.control(Control::KvTokens(u32::MAX));
        self.run_until_ended("all clients", |_| true);
        for (reply_id, heard) in &self.heard {
            assert_eq!(heard.ends.len(), 1, "{reply_id:?} ends once: {heard:?}");
        }
    }

    /// Runs until the clients have no open reply.
    fn run_until_ended(&mut self, whose: &str, of: fn(&Client) -> bool) {
        for _ in 0..MAX_FRAMES_TO_END {
            let mut clients = self.clients.iter().filter(|client| of(client));
            if !clients.any(|client| self.is_open_for(client.key)) {
                return;
            }
            self.frame();
        }
        panic!("replies of {whose} do not end: {:?}\n{}", self.clients, describe(&self.core));
    }

    fn return_all_pages(&mut self) {
        for (agent, client) in std::mem::take(&mut self.agents) {
            self.command(client, Command::RemoveAgent { agent });
        }
        self.frame();
        self.frame();
        self.core.kv.drop_snapshots();
        let pages_used = self.core.kv.ledger().used_pages();
        let agents = self.core.stats().agents;
        assert_eq!((pages_used, agents), (0, 0), "everything is returned");
    }
}

fn simulate(seed: u64) -> String {
    let _named = Named(VARIABLE, seed);
    Simulation::new(seed).run()
}

#[test]
fn random_schedules_of_several_clients_complete() {
    run_all(seeds(VARIABLE, SEEDS), simulate);
}

#[test]
fn a_schedule_of_several_clients_replays_byte_for_byte() {
    for seed in seeds(VARIABLE, SEEDS).take(20) {
        let first = simulate(seed);
        assert!(!first.is_empty(), "seed {seed}: something is said");
        assert_eq!(first, simulate(seed), "seed {seed}");
    }
}
