//! A shop: the smith sells items through a typed action of the game. This is the example to copy
//! from for agents that act.
//!
//! ```text
//! cargo run --release -p walla_examples --example shop [-- --model FILE.gguf]
//! ```

use std::time::Duration;

use bevy_app::{ScheduleRunnerPlugin, prelude::*};
use bevy_ecs::prelude::*;
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::prelude::*;
use clap::Parser;
use serde::Deserialize;
use walla_examples::{ModelArgs, fail};

/// Hands an item over the counter.
#[derive(Deserialize, JsonSchema)]
struct Sell {
    /// The item that the customer wants to buy.
    item: String,
}

/// The state of the game: the model asks for changes, and the game decides.
#[derive(Resource)]
struct Shop {
    /// Items with their prices in silver.
    stock: Vec<(&'static str, u32)>,
    /// Silver of the customer.
    purse: u32,
    sold: Vec<&'static str>,
    lines: std::slice::Iter<'static, &'static str>,
}

/// Lines of the customer.
const LINES: [&str; 6] = [
    "Hello! What is your name?",
    "What does a horseshoe cost?",
    "I would like to buy a horseshoe.",
    "A sword, please.",
    "Then sell me the axe.",
    "A horseshoe, please.",
];

/// A smith sells to a customer.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
}

fn main() -> AppExit {
    let plugin = Arguments::parse().model.plugin(1).unwrap_or_else(|error| fail(error));
    App::new()
        .add_plugins((ScheduleRunnerPlugin::run_loop(Duration::from_millis(16)), plugin))
        .insert_resource(Shop {
            stock: vec![("horseshoe", 3), ("axe", 9), ("sword", 40)],
            purse: 20,
            sold: Vec::new(),
            lines: LINES.iter(),
        })
        .add_action::<Sell>()
        .add_observer(|failed: On<WallaFailed>| fail(&failed.error))
        .add_systems(Startup, open)
        // After `Collect`, the smith is not silent while the result of a call waits for words.
        .add_systems(PostUpdate, speak.after(WallaSystems::Collect).run_if(walla_ready))
        .run()
}

fn open(mut commands: Commands, shop: Res<Shop>) {
    let persona = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver. An axe costs \
                   9 silver. A sword costs 40 silver.";
    let items = shop.stock.iter().map(|(item, _)| *item);
    commands
        .spawn((
            Agent::persona(persona),
            AgentSampling::greedy(),
            AgentActions::new().allow::<Sell>().choices::<Sell>("item", items),
        ))
        .observe(|sentence: On<ReplySentence>| println!("Greta: {}", sentence.text))
        .observe(sell)
        .observe(|failed: On<ReplyFailed>| fail(&failed.error));
}

/// Executes the action, or explains why not: only the game knows the purse and the stock.
fn sell(call: On<ActionCall<Sell>>, mut shop: ResMut<Shop>, mut commands: Commands) {
    let result = match shop.stock.iter().position(|(item, _)| *item == call.item) {
        Some(at) if shop.stock[at].1 <= shop.purse => {
            let (item, price) = shop.stock.remove(at);
            shop.purse -= price;
            shop.sold.push(item);
            format!("The {item} is sold.")
        }
        Some(at) => format!("The customer does not have {} silver.", shop.stock[at].1),
        None => format!("The {} is already sold.", call.item),
    };
    println!("       [{result}]");
    commands.entity(call.agent).action_result(call.id, result); // the smith speaks about it
}

/// The customer speaks when the smith is silent. After the last line, the result is printed.
fn speak(
    mut shop: ResMut<Shop>,
    smith: Single<(Entity, &Speech)>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) {
    let (smith, speech) = *smith;
    if !speech.is_silent() {
        return;
    }
    if let Some(line) = shop.lines.next() {
        println!("You:   {line}");
        commands.ask(smith, *line);
    } else {
        println!("\nSold: {}. Silver left: {}.", shop.sold.join(", "), shop.purse);
        exit.write(AppExit::Success);
    }
}
