//! Random operations of a game through Bevy, with several engines.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::error::Error;
use std::time::{Duration, Instant};

use bevy_app::{App, Update};
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_walla::EngineOptions;
use bevy_walla::actions::{ActionPolicy, AgentCalled, ResultRefused};
use bevy_walla::agent::{AgentEngine, ForkCommands};
use bevy_walla::ask::{Cancel, Prompt};
use bevy_walla::cache::{CacheCommands, CacheEnded};
use bevy_walla::conversation::Speaker;
use bevy_walla::engine::Pacing;
use bevy_walla::engines::{EngineSet, EngineSetup, ReplyInProgress, WallaEngines};
use bevy_walla::options::FrameBudget;
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyId;
use clap::ValueEnum;
use tempfile::TempDir;

use super::dice::Dice;
use super::material::{MISSING, QUESTIONS, action, constraint, persona, refused_constraint};
use super::tally::Tally;
use crate::process::MAX_END;

const MAX_AGENTS: usize = 16;

/// Engines that the game loads; the last one has no model.
const ENGINES: [&str; 4] = ["default", "inn", "mine", "broken"];

/// Engines of agents.
const ROUTES: [&str; 8] =
    ["default", "default", "default", "inn", "inn", "mine", "broken", "absent"];

/// Engines that are unloaded, but not released, while another one may be loaded.
const MAX_UNLOADING: usize = 2;

#[rustfmt::skip]
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Operation {
    Spawn, Despawn, Disable, ReplaceAgent, ChangePersona, ChangeEngine, ChangeConstraint,
    ChangeDetail, Fork,
    Ask, AskUnderConstraint, AskRefused, AskRaw, AskAside, AskToContinue, AskNobody, AskAndAct,
    Regenerate, Cancel, CancelHeard, Result, RepeatedResult, ForeignResult,
    Rewind, EditTurn, ForgetExchange, Clear, Push, SaveCache, LoadCache,
    Resize, Pause, Load, Replace, Unload,
}

use Operation as Op;

#[derive(Resource)]
struct Game {
    dice: Dice,
    tally: Tally,
    agents: Vec<Entity>,
    /// Tag of the latest ask.
    asked: u64,
    /// Asks without an end, by tag.
    open: HashMap<u64, Entity>,
    /// Replies with an end.
    ended: BTreeSet<ReplyId>,
    /// The latest calls.
    calls: VecDeque<AgentCalled>,
    /// Tags of calls with results: further replies have the tag of the ask.
    continued: BTreeSet<u64>,
    folder: TempDir,
    is_quiet: bool,
    /// The operation of this frame.
    operation: Option<Operation>,
}

impl Game {
    fn new(dice: Dice) -> std::io::Result<Self> {
        Ok(Self {
            dice,
            tally: Tally::default(),
            agents: Vec::new(),
            asked: 0,
            open: HashMap::new(),
            ended: BTreeSet::new(),
            calls: VecDeque::new(),
            // Results for an agent without such a call have no tag.
            continued: BTreeSet::from([0]),
            folder: tempfile::tempdir()?,
            is_quiet: false,
            operation: None,
        })
    }

    fn ended(&mut self, reply_id: ReplyId, tag: u64) {
        let is_first = self.ended.insert(reply_id);
        let is_asked = self.open.remove(&tag).is_some() || self.continued.contains(&tag);
        let broken = || format!("an end too many: {reply_id:?}, ask {tag}");
        self.tally.promise(is_first && is_asked, broken);
    }

    fn called(&mut self, call: &AgentCalled) {
        if self.calls.len() > 32 {
            self.calls.pop_front();
        }
        self.calls.push_back(call.clone());
    }

    fn act(&mut self, world: &mut World) {
        let Some(operation) = self.dice.pick(Op::value_variants()) else { return };
        let agent = self.dice.pick(&self.agents);
        self.tally.operation(operation);
        self.operation = Some(operation);
        match (operation, agent) {
            (Op::Spawn, _) | (_, None) => self.spawn(world),
            (Op::Load | Op::Replace | Op::Unload, _) => self.change_engines(world, operation),
            (Op::Resize, _) => {
                let tokens = 512 * self.dice.throw(8) as u32;
                world.resource::<Walla>().set_kv_tokens(tokens);
            }
            (Op::Pause, _) => {
                world.resource_mut::<WallaSettings>().paused = self.dice.one_in(3);
            }
            (_, Some(agent)) => self.act_on(world, agent, operation),
        }
    }

    fn act_on(&mut self, world: &mut World, agent: Entity, operation: Operation) {
        match operation {
            Op::Despawn => {
                world.despawn(agent);
                self.agents.retain(|&other| other != agent);
            }
            Op::Cancel => world.trigger(Cancel::new(agent)),
            Op::CancelHeard => {
                world.trigger(Cancel::heard(agent, self.dice.throw(60) as u32));
            }
            Op::Fork if self.agents.len() < MAX_AGENTS => {
                self.agents.push(world.commands().fork_agent(agent));
                world.flush();
            }
            Op::SaveCache => world.commands().save_cache(agent, self.cache()),
            Op::LoadCache => world.commands().load_cache(agent, self.cache()),
            Op::Result | Op::RepeatedResult | Op::ForeignResult => {
                self.give_result(world, agent, operation);
            }
            Op::Rewind | Op::EditTurn | Op::ForgetExchange | Op::Clear | Op::Push => {
                self.edit(world, agent, operation);
            }
            Op::Disable
            | Op::ReplaceAgent
            | Op::ChangePersona
            | Op::ChangeEngine
            | Op::ChangeConstraint
            | Op::ChangeDetail => {
                self.change(&mut world.entity_mut(agent), operation);
            }
            _ => self.ask_somehow(world, agent, operation),
        }
    }

    fn spawn(&mut self, world: &mut World) {
        if self.agents.len() >= MAX_AGENTS {
            return;
        }
        let mut actions = AgentActions::new().result_wait(Duration::from_millis(300));
        match action() {
            Ok(give) => actions.add(give),
            Err(error) => self.tally.promise(false, || error.to_string()),
        }
        let limits = ReplyLimits::tokens(4 + self.dice.throw(40) as u32);
        let mut agent = world.spawn((Agent::persona(persona(&mut self.dice)), limits));
        if self.dice.one_in(2) {
            agent.insert(actions);
        }
        self.agents.push(agent.id());
        self.change(&mut agent, Op::ChangeEngine);
    }

    fn cache(&mut self) -> std::path::PathBuf {
        self.folder.path().join(format!("{}.kv", self.dice.throw(4)))
    }

    fn change(&mut self, agent: &mut EntityWorldMut<'_>, operation: Operation) {
        match operation {
            Op::Disable if agent.contains::<Disabled>() => _ = agent.remove::<Disabled>(),
            Op::Disable => _ = agent.insert(Disabled),
            Op::ReplaceAgent => {
                agent.remove::<Agent>().insert(Agent::persona(persona(&mut self.dice)));
            }
            Op::ChangePersona => _ = agent.insert(Agent::persona(persona(&mut self.dice))),
            Op::ChangeConstraint if self.dice.one_in(2) => _ = agent.remove::<AgentConstraint>(),
            Op::ChangeConstraint => {
                agent.insert(AgentConstraint(constraint(&mut self.dice)));
            }
            Op::ChangeDetail => _ = agent.insert(LevelOfDetail(self.dice.throw(3) as u8)),
            _ => {
                let engine = AgentEngine::named(self.engine());
                let wait = [None, Some(Duration::from_millis(self.dice.throw(300)))];
                agent.insert(match self.dice.throw(3) {
                    0 => AgentEngine::default(),
                    1 => engine,
                    _ => engine.or(self.engine(), self.dice.pick(&wait).flatten()),
                });
            }
        }
    }

    fn engine(&mut self) -> &'static str {
        self.dice.pick(&ROUTES).unwrap_or_default()
    }

    fn ask(&mut self, world: &mut World, ask: Ask) {
        self.asked += 1;
        self.open.insert(self.asked, ask.agent);
        let ask = ask.with_tag(self.asked);
        if self.dice.one_in(3) {
            world.write_message(ask);
        } else {
            world.trigger(ask);
        }
    }

    fn ask_somehow(&mut self, world: &mut World, agent: Entity, operation: Operation) {
        let ask = Ask::new(agent, self.dice.pick(&QUESTIONS).unwrap_or_default());
        let ask = match operation {
            Op::AskUnderConstraint => ask.with_constraint(constraint(&mut self.dice)),
            Op::AskRefused => ask.with_constraint(refused_constraint(&mut self.dice)),
            Op::AskRaw => Ask::new(agent, Prompt::Raw(ask.prompt.text().into())),
            Op::AskAside => ask.aside(),
            Op::AskToContinue => Ask::resume(agent),
            Op::AskNobody => Ask::new(world.spawn_empty().id(), "Is nobody there?"),
            Op::AskAndAct => ask.with_policy(ActionPolicy::Required),
            Op::Regenerate => Ask::again(agent).with_seed(self.asked),
            _ => ask,
        };
        let asked = ask.agent;
        self.ask(world, ask);
        if asked != agent {
            world.despawn(asked);
        }
    }

    /// Gives the result of a call of this agent, once or twice, or of another agent.
    fn give_result(&mut self, world: &mut World, agent: Entity, operation: Operation) {
        let is_foreign = matches!(operation, Op::ForeignResult);
        let Some(at) = self.calls.iter().rposition(|call| (call.agent == agent) != is_foreign)
        else {
            return;
        };
        let call = &self.calls[at];
        let (id, text) = (call.call.id, "It is done.".to_owned());
        self.continued.insert(call.tag);
        world.trigger(ActionResult { agent, id, text: text.clone() });
        match operation {
            Op::RepeatedResult => world.trigger(ActionResult { agent, id, text }),
            // A copy of this agent may still use it.
            Op::Result if self.dice.one_in(2) => _ = self.calls.remove(at),
            _ => {}
        }
    }

    fn edit(&mut self, world: &mut World, agent: Entity, operation: Operation) {
        let Some(mut talk) = world.get_mut::<Conversation>(agent) else { return };
        let number = self.dice.throw(5) as usize;
        match operation {
            Op::Rewind => _ = talk.rewind(number),
            Op::EditTurn => _ = talk.set_text(number, "Nothing at all."),
            Op::ForgetExchange => _ = talk.forget_last_exchange(),
            Op::Clear => talk.clear(),
            _ => talk.push(Speaker::Observation, "Odo enters the smithy."),
        }
    }

    /// Loads, replaces or unloads engines. Errors are names that are in use, or unknown.
    fn change_engines(&mut self, world: &mut World, operation: Operation) {
        let mut engines = world.resource_mut::<WallaEngines>();
        let name = self.dice.pick(&ENGINES).unwrap_or_default();
        let in_progress = [ReplyInProgress::Finish, ReplyInProgress::Cancel];
        let in_progress = self.dice.pick(&in_progress).unwrap_or_default();
        let changed = match operation {
            Op::Unload => vec![engines.remove(name, in_progress)],
            _ if engines.unloading() > MAX_UNLOADING => vec![],
            Op::Load => ENGINES.map(|name| engines.load(name, self.setup(name))).into(),
            _ => vec![engines.replace(name, self.setup(name))],
        };
        for end in &changed {
            self.tally.end(&format!("{operation:?} of an engine"), end);
        }
    }

    /// The model, or sometimes a missing file.
    fn setup(&mut self, name: &str) -> EngineSetup {
        if name == "broken" || self.dice.one_in(6) {
            let folder = if self.dice.one_in(2) { self.folder.path() } else { "".as_ref() };
            return EngineOptions::model(folder.join(MISSING)).into();
        }
        options(&mut self.dice).into()
    }
}

fn options(dice: &mut Dice) -> EngineOptions {
    let mut options = EngineOptions::demo();
    (options.device, options.threads) = ("cpu".into(), Some(1));
    (options.max_agents, options.context_tokens) = (Some(2 + dice.throw(6) as u32), 512);
    options.wait_for_slot = !dice.one_in(8);
    options
}

fn act(world: &mut World) {
    world.resource_scope(|world, mut game: Mut<Game>| {
        if !game.is_quiet && game.dice.one_in(5) {
            game.act(world);
        }
    });
}

/// Counts the ends of replies and of other requests.
fn hear(
    mut game: ResMut<Game>,
    mut finished: MessageReader<ReplyFinished>,
    mut failed: MessageReader<ReplyFailed>,
    mut called: MessageReader<AgentCalled>,
    mut refused: MessageReader<ResultRefused>,
    mut copied: MessageReader<CacheEnded>,
) {
    for reply in finished.read() {
        game.tally.reply(Ok(reply.reason));
        game.ended(reply.reply_id, reply.tag);
    }
    for reply in failed.read() {
        game.tally.reply(Err(&reply.error));
        game.ended(reply.reply_id, reply.tag);
    }
    called.read().for_each(|call| game.called(call));
    refused.read().for_each(|result| game.tally.end("refused result", &result.reason));
    for copy in copied.read() {
        let of = if copy.is_load { "load" } else { "save" };
        game.tally.end(of, &copy.result.as_ref().map(drop));
    }
}

/// Runs frames while `goes_on`, for at most `length`.
fn frames(app: &mut App, length: Duration, mut goes_on: impl FnMut(&mut App) -> bool) {
    let start = Instant::now();
    while start.elapsed() < length && goes_on(app) {
        let frame = Instant::now();
        app.update();
        let elapsed = frame.elapsed();
        let mut game = app.world_mut().resource_mut::<Game>();
        let operation = game.operation.take();
        game.tally.frame(elapsed, operation);
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// Waits until all asks have ended and no agent speaks.
fn await_ends(app: &mut App) {
    app.world_mut().resource_mut::<Game>().is_quiet = true;
    app.world_mut().resource_mut::<WallaSettings>().paused = false;
    app.world().resource::<Walla>().set_kv_tokens(u32::MAX);
    let speaks = |app: &App, game: &Game| {
        let speeches = game.agents.iter().filter_map(|&agent| app.world().get::<Speech>(agent));
        speeches.filter(|speech| !speech.is_silent()).count()
    };
    frames(app, MAX_END, |app| {
        let game = app.world().resource::<Game>();
        !game.open.is_empty() || speaks(app, game) > 0
    });
    frames(app, Duration::from_millis(400), |_| true);
    let (game, walla) = (app.world().resource::<Game>(), app.world().resource::<Walla>());
    let left = (game.open.len(), speaks(app, game), walla.asks_waiting(), walla.events_unknown());
    let open = format!("{:?}", game.open);
    let tally = &mut app.world_mut().resource_mut::<Game>().tally;
    tally.promise(left == (0, 0, 0, 0), || {
        format!("(asks without an end, speaking agents, waiting asks, unknown events) is {left:?}: {open}")
    });
}

/// A new agent of a new default engine answers.
fn check_answer(app: &mut App) -> Result<(), Box<dyn Error>> {
    let setup = options(&mut Dice::new(1));
    let mut engines = app.world_mut().resource_mut::<WallaEngines>();
    if engines.get("default").is_some() {
        engines.remove("default", ReplyInProgress::Finish)?;
    }
    engines.load("default", setup)?;
    let greta = app.world_mut().spawn(Agent::persona("You are Greta, the smith.")).id();
    app.world_mut().resource_scope(|world, mut game: Mut<Game>| {
        game.ask(world, Ask::new(greta, QUESTIONS[0]));
    });
    await_ends(app);
    let said = app.world().get::<Conversation>(greta).and_then(Conversation::last_reply);
    let is_answered = said.is_some_and(|text| !text.is_empty());
    let tally = &mut app.world_mut().resource_mut::<Game>().tally;
    tally.promise(is_answered, || "the last ask was not answered".into());
    Ok(())
}

/// A round of operations. The app ends while agents speak.
pub fn round(mut dice: Dice, length: Duration) -> Result<Tally, Box<dyn Error>> {
    let mut app = App::new();
    let mut options = options(&mut dice);
    let is_free = dice.one_in(2);
    if is_free {
        options.budget = FrameBudget::Unlimited;
    }
    let plugin = WallaPlugin::engines(EngineSet::new("default", options));
    app.add_plugins(if is_free { plugin.pacing(Pacing::FreeRunning) } else { plugin })
        .insert_resource(Game::new(dice)?)
        .add_systems(Update, (hear, act).chain());
    frames(&mut app, length, |_| true);
    await_ends(&mut app);
    check_answer(&mut app)?;
    let game = app.world().resource::<Game>();
    let (agents, tally) = (game.agents.clone(), game.tally.clone());
    agents.into_iter().for_each(|agent| app.world_mut().trigger(Ask::new(agent, QUESTIONS[0])));
    (0..10).for_each(|_| app.update());
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_end_and_an_end_without_an_ask_are_broken_promises() {
        let mut game = Game::new(Dice::new(1)).expect("a folder");
        game.open.insert(1, Entity::PLACEHOLDER);
        game.ended(ReplyId(1), 1);
        assert_eq!(game.tally.broken.len(), 0);
        game.ended(ReplyId(1), 1);
        game.ended(ReplyId(2), 7);
        assert_eq!(game.tally.broken.len(), 2);
    }
}
