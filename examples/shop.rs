//! A shop: the smith hands items over, as typed actions of the game. This is the example to copy
//! from for agents that act.
//!
//! ```text
//! cargo run --release --example shop [-- --model FILE.gguf]
//! ```

use std::time::Duration;

use bevy_app::{ScheduleRunnerPlugin, prelude::*};
use bevy_ecs::prelude::*;
use bevy_walla::prelude::*;
use bevy_walla::schemars::{self, JsonSchema};
use clap::Parser;
use serde::Deserialize;
use walla_examples::{ModelArgs, fail};

/// Hands an item over the counter and takes the payment.
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
    purse: u32,
    ledger: Vec<String>,
    customers: std::vec::IntoIter<&'static str>,
}

const CUSTOMERS: [&str; 5] = [
    "Hello! What is your name?",
    "I would like to buy a horseshoe.",
    "A sword, please.",
    "Sell me the axe.",
    "I want to buy another horseshoe.",
];

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
            ledger: Vec::new(),
            customers: CUSTOMERS.to_vec().into_iter(),
        })
        .add_action::<Sell>()
        .add_systems(Startup, open)
        .add_systems(Update, next_customer.run_if(walla_ready))
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
            Actions::new().allow::<Sell>().choices::<Sell>("item", items).calls_max(1),
        ))
        .observe(|sentence: On<ReplySentence>| println!("Greta: {}", sentence.text))
        .observe(sell)
        .observe(|failed: On<ReplyFailed>| eprintln!("error: {}", failed.error));
}

/// Executes an action: the model cannot sell an item that is not in stock, because its choices do
/// not contain it, but only the game knows the customer's purse.
fn sell(
    call: On<ActionCall<Sell>>,
    mut shop: ResMut<Shop>,
    mut smiths: Query<&mut Actions>,
    mut commands: Commands,
) {
    let Some(at) = shop.stock.iter().position(|(item, _)| *item == call.item) else { return };
    let (item, price) = shop.stock[at];
    let result = if price > shop.purse {
        format!("The customer cannot pay {price} silver for the {item}.")
    } else {
        shop.stock.remove(at);
        shop.purse -= price;
        format!("The {item} is sold for {price} silver.")
    };
    println!("       [{result}]");
    shop.ledger.push(result.clone());
    if let Ok(mut actions) = smiths.get_mut(call.agent) {
        actions.set_choices::<Sell>("item", shop.stock.iter().map(|(item, _)| *item));
    }
    commands.entity(call.agent).action_result(call.id, result);
}

/// The next customer speaks when the smith is silent; after the last one the ledger is printed.
fn next_customer(
    mut shop: ResMut<Shop>,
    smith: Single<(Entity, &Speech)>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) {
    let (smith, speech) = *smith;
    if !speech.is_silent() {
        return;
    }
    let Some(line) = shop.customers.next() else {
        println!("\nLedger ({} silver left in the purse):", shop.purse);
        shop.ledger.iter().for_each(|entry| println!("  {entry}"));
        exit.write(AppExit::Success);
        return;
    };
    println!("You:   {line}");
    commands.ask(smith, line);
}
