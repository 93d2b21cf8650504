//! Orders in words, the actions that they lead to, and the results of these.

use std::fmt::Debug;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::actions::{ActionPolicy, CallId, CallRefused};
use bevy_walla::prelude::*;

use crate::action::{Charge, Clean, Deliver, Fetch, Goto, Order, Stop, Wait, actions};
use crate::base::{Base, TaskEnded};

const PERSONA: &str = "You are Pip, a courier robot in a house. Answer in one sentence.";

/// What people say, and whether it interrupts the task of the previous order.
const ORDERS: [(&str, bool); 9] = [
    ("What's your name?", false),
    ("You're needed in the kitchen.", false),
    ("Go to the moon!", false),
    ("Take the cup to the workshop.", false),
    ("Go to the cellar.", false),
    ("Bring the flowers to the kitchen, please.", false),
    ("Stop!", true),
    ("Wait 3 seconds.", false),
    ("Go home and charge.", false),
];

/// Ticks of silence, without a task, before the next order: half a second.
const IDLE_TICKS: u32 = 50;

/// Ticks from an order to its interruption: two seconds.
const INTERRUPT_TICKS: u32 = 200;

/// Gives the robot its orders, and the base its tasks.
pub struct TalkPlugin;

impl Plugin for TalkPlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Orders>()
            .add_systems(Startup, |mut commands: Commands| {
                commands.spawn((
                    Agent::persona(PERSONA),
                    AgentSampling::greedy(),
                    ReplyLimits::tokens(96),
                    actions(),
                ));
            })
            .add_systems(Update, order.run_if(walla_ready))
            .add_observer(report)
            .add_observer(|sentence: On<ReplySentence>| println!("robot: {}", sentence.text))
            .add_observer(|refused: On<CallRefused>, mut orders: ResMut<Orders>| {
                orders.refused += 1;
                println!("       [refused: {}]", refused.reason);
            })
            .add_observer(|failed: On<ReplyFailed>| println!("robot: ({})", failed.error));
        add::<Goto>(app);
        add::<Fetch>(app);
        add::<Deliver>(app);
        add::<Clean>(app);
        add::<Wait>(app);
        add::<Stop>(app);
        add::<Charge>(app);
    }
}

fn add<T: Order + Debug>(app: &mut App) {
    app.add_action::<T>().add_observer(obey::<T>);
}

#[derive(Resource, Default)]
struct Orders {
    given: usize,
    ticks_since: u32,
    idle_ticks: u32,
    /// The call whose task the base executes.
    running: Option<(Entity, CallId)>,
    done: u32,
    interrupted: u32,
    refused: u32,
}

/// Gives the next order: some time after the end of the previous one, or while the robot drives.
fn order(
    mut orders: ResMut<Orders>,
    base: Res<Base>,
    robot: Single<(Entity, &Speech), With<Agent>>,
    mut commands: Commands,
) {
    let (robot, speech) = *robot;
    let is_idle = base.is_idle() && speech.is_silent();
    orders.idle_ticks = if is_idle { orders.idle_ticks + 1 } else { 0 };
    orders.ticks_since += 1;
    let (words, interrupts) = ORDERS[orders.given % ORDERS.len()];
    let interrupts = interrupts && orders.ticks_since >= INTERRUPT_TICKS;
    if orders.idle_ticks < IDLE_TICKS && !interrupts {
        return;
    }
    orders.given += 1;
    (orders.ticks_since, orders.idle_ticks) = (0, 0);
    println!("human: {words}");
    commands.trigger(Ask::new(robot, words).with_policy(ActionPolicy::Auto));
}

/// Checks a call. The base begins its task, or the agent hears why not.
fn obey<T: Order + Debug>(
    call: On<ActionCall<T>>,
    mut base: ResMut<Base>,
    mut orders: ResMut<Orders>,
    mut commands: Commands,
) {
    println!("       [{:?} at ({:.1}, {:.1})]", call.action, base.at.x, base.at.y);
    match call.action.task() {
        Ok(task) => {
            base.start(task);
            let replaced = orders.running.replace((call.agent, call.id));
            orders.interrupted += u32::from(replaced.is_some());
        }
        Err(reason) => {
            orders.refused += 1;
            println!("       [refused: {reason}]");
            commands.entity(call.agent).action_result(call.id, reason);
        }
    }
}

/// Reports the result of the task to the agent, which speaks about it.
fn report(
    ended: On<TaskEnded>,
    base: Res<Base>,
    mut orders: ResMut<Orders>,
    mut commands: Commands,
) {
    let Some((agent, call)) = orders.running.take() else { return };
    orders.done += 1;
    println!("       [{} At ({:.1}, {:.1})]", ended.result, base.at.x, base.at.y);
    commands.entity(agent).action_result(call, &ended.result);
}

/// Whether the agent has an open ask.
pub fn is_speaking(world: &mut World) -> bool {
    world.query::<&Speech>().iter(world).any(|speech| !speech.is_silent())
}

/// Prints the results of the orders.
pub fn print_summary(world: &World) {
    let (orders, base) = (world.resource::<Orders>(), world.resource::<Base>());
    println!(
        "{} orders; tasks: {} done, {} interrupted, {} refused; {:.1} m driven",
        orders.given, orders.done, orders.interrupted, orders.refused, base.driven
    );
}

#[cfg(test)]
mod tests {
    use bevy_walla::conversation::Speaker;
    use bevy_walla::scripted::ScriptedEngine;

    use super::*;
    use crate::base::BasePlugin;

    /// A robot whose model calls `goto` for an order, with any place, as no real engine does.
    fn app(order: &'static str, place: &'static str) -> App {
        let engine = ScriptedEngine::new(|_, question| format!("Heard: {question}"));
        let goto = format!(r#"{{"place": "{place}"}}"#);
        let engine = engine.acting(move |_, question| {
            let is_order = question == order;
            is_order.then(|| ("goto".to_owned(), goto.clone())).into_iter().collect()
        });
        let mut app = App::new();
        let plugin = WallaPlugin::new(&engine);
        app.add_plugins((plugin, BasePlugin, TalkPlugin));
        app
    }

    /// Runs the loop until this number of orders was given.
    fn run_until(app: &mut App, given: usize) {
        for _ in 0..60 * 100 {
            app.update();
            if app.world().resource::<Orders>().given == given {
                return;
            }
        }
        panic!("less than {given} orders in a minute");
    }

    fn results(app: &mut App) -> Vec<(Speaker, String)> {
        let mut talks = app.world_mut().query::<&Conversation>();
        let talk = talks.single(app.world()).expect("one robot");
        let turns = talk.turns().iter().map(|turn| (turn.speaker, turn.text.to_string()));
        turns.skip_while(|(speaker, _)| *speaker != Speaker::ActionResult).take(2).collect()
    }

    #[test]
    fn an_order_is_executed_and_its_result_is_spoken() {
        let mut app = app(ORDERS[1].0, "kitchen");
        run_until(&mut app, 3);
        let at = app.world().resource::<Base>().at;
        assert!(at.distance(crate::house::place("kitchen").unwrap().at()) < 0.3, "{at:?}");
        assert_eq!(app.world().resource::<Orders>().done, 1);
        let spoken = "Heard: You are in the kitchen.".to_owned();
        let result = (Speaker::ActionResult, "You are in the kitchen.".to_owned());
        assert_eq!(results(&mut app), [result, (Speaker::Agent, spoken)]);
    }

    #[test]
    fn a_call_with_an_unknown_place_starts_no_task() {
        let mut app = app(ORDERS[0].0, "moon");
        run_until(&mut app, 2);
        let orders = app.world().resource::<Orders>();
        assert_eq!((orders.done, orders.refused, orders.running), (0, 1, None));
        assert!(app.world().resource::<Base>().is_idle());
        let reason = "There is no moon in this house.".to_owned();
        assert_eq!(results(&mut app)[0], (Speaker::ActionResult, reason));
    }
}
