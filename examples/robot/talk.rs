//! Orders in words, and their results.

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::prelude::*;

use crate::action::Answer;
use crate::base::Base;

/// The agent's instructions. The robot still checks every answer.
const PERSONA: &str = "You are Pip, a courier robot in a house. Places: dock, kitchen, workshop, garden. \
    Actions: goto, deliver, clean, wait, stop, charge, say, refuse. \
    Answer with one JSON action with action, target and say.";

/// Orders, one every [`ORDER_EVERY_TICKS`].
const ORDERS: [&str; 8] = [
    "Bring this cup to the kitchen.",
    "Wait five seconds.",
    "You're needed in the workshop.",
    "Go to the moon!",
    "What's your name?",
    "Take the flowers to the garden, please.",
    "Stop!",
    "Go home and charge.",
];

/// Ticks from one order to the next: four seconds.
const ORDER_EVERY_TICKS: u32 = 400;

/// Gives the robot its orders.
pub struct TalkPlugin;

impl Plugin for TalkPlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Orders>()
            .add_systems(Startup, |mut commands: Commands| {
                commands
                    .spawn((
                        Agent::persona(PERSONA),
                        AgentSampling::greedy(),
                        ReplyLimits::tokens(60).stop_at("\n"),
                    ))
                    .observe(obey)
                    .observe(|failed: On<ReplyFailed>| println!("robot: ({})", failed.error));
            })
            .add_systems(Update, order.run_if(walla_ready));
    }
}

#[derive(Resource, Default)]
struct Orders {
    ticks: u32,
    given: usize,
    obeyed: u32,
    refused: u32,
}

fn order(mut orders: ResMut<Orders>, robot: Single<Entity, With<Agent>>, mut commands: Commands) {
    orders.ticks += 1;
    if !orders.ticks.is_multiple_of(ORDER_EVERY_TICKS) {
        return;
    }
    let order = ORDERS[orders.given % ORDERS.len()];
    orders.given += 1;
    println!("human: {order}");
    commands.ask(*robot, order);
}

/// Checks a complete reply, then executes or refuses its action.
fn obey(
    finished: On<ReplyFinished>,
    talks: Query<&Conversation>,
    mut base: ResMut<Base>,
    mut orders: ResMut<Orders>,
) {
    let Ok(talk) = talks.get(finished.agent) else { return };
    // A reply that was cancelled before its first text is not in the conversation.
    match Answer::parse(talk.reply(finished.reply_id).unwrap_or_default()) {
        Ok(Answer { action, say }) => {
            orders.obeyed += 1;
            base.act(action);
            println!("robot: {say}   [{action:?} from ({:.1}, {:.1})]", base.at.x, base.at.y);
        }
        Err(reason) => {
            orders.refused += 1;
            println!("robot: I would rather not: {reason}. I go on as before.");
        }
    }
}

/// Whether the agent has an open ask.
pub fn is_speaking(world: &mut World) -> bool {
    world.query::<&Speech>().iter(world).any(|speech| !speech.is_silent())
}

/// Prints the results of the orders.
pub fn print_summary(world: &World) {
    let (orders, base) = (world.resource::<Orders>(), world.resource::<Base>());
    println!(
        "{} orders: {} done, {} refused; {:.1} m driven",
        orders.given, orders.obeyed, orders.refused, base.driven
    );
}
