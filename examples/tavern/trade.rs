//! Purchases of the visitor: an action of the guests that changes the owner of an item.

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::actions::ActionPolicy;
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::prelude::*;
use serde::Deserialize;
use walla_examples::{Persona, Ware};

use crate::dialogue::Evening;
use crate::frames;
use crate::printer::PrintHandle;

/// Silver of the visitor at the beginning.
const PURSE_SILVER: u32 = 20;

/// Hands an item over the counter.
#[derive(Deserialize, JsonSchema)]
struct Sell {
    /// The item that the visitor wants to buy.
    item: String,
}

/// Executes the guests' sales, and prints the ledger at the end.
pub struct TradePlugin;

/// Silver and items of a guest or of the visitor.
#[derive(Component)]
pub struct Goods {
    silver: u32,
    items: Vec<Ware>,
}

/// The buyer.
#[derive(Component)]
struct Visitor;

/// All sales.
#[derive(Resource, Default)]
struct Ledger(Vec<String>);

impl Plugin for TradePlugin {
    fn build(&self, app: &mut App) {
        app.world_mut().spawn((Visitor, Goods { silver: PURSE_SILVER, items: Vec::new() }));
        app.init_resource::<Ledger>()
            .add_action::<Sell>()
            .add_observer(sell)
            .add_systems(Last, print_ledger.after(frames::end).run_if(on_message::<AppExit>));
    }
}

/// The action of a guest that sells something.
///
/// Guests have it only while the visitor is at their table: a small model talks better without a
/// list of actions. Even then they do not sell to each other: the policy of the visitor's asks is
/// [`ActionPolicy::Auto`], and that of all others is [`ActionPolicy::Off`].
pub fn actions(persona: &Persona) -> Option<AgentActions> {
    let items = persona.wares.iter().map(|ware| ware.item);
    let actions = AgentActions::new().allow::<Sell>().choices::<Sell>("item", items);
    (!persona.wares.is_empty()).then(|| actions.policy(ActionPolicy::Off))
}

/// Executes a sale, or explains why not. The guest hears the result and speaks about it.
fn sell(
    call: On<ActionCall<Sell>>,
    visitor: Single<Entity, With<Visitor>>,
    mut goods: Query<&mut Goods>,
    names: Query<&Name>,
    (evening, printer): (Res<Evening>, Res<PrintHandle>),
    mut ledger: ResMut<Ledger>,
    mut commands: Commands,
) -> Result {
    let (name, item) = (names.get(call.agent)?, &call.item);
    let [mut seller, mut buyer] = goods.get_many_mut([call.agent, *visitor])?;
    let result = match buyer.buy(item, &mut seller) {
        Ok(price) => {
            ledger.0.push(format!("{item}: {name} -> Visitor, {price} silver"));
            format!("The {item} is sold.")
        }
        Err(reason) => reason,
    };
    printer.print(evening.line(name, &format!("[{result}]")));
    commands.entity(call.agent).action_result(call.id, result);
    Ok(())
}

impl Goods {
    /// The goods of a guest before the first sale.
    pub fn of(persona: &Persona) -> Self {
        Self { silver: 0, items: persona.wares.to_vec() }
    }

    /// Buys an item and returns its price, or the reason why not, in words for the seller.
    fn buy(&mut self, item: &str, seller: &mut Self) -> Result<u32, String> {
        let at = seller.items.iter().position(|ware| ware.item == item);
        let at = at.ok_or_else(|| format!("The {item} is already sold."))?;
        let price = seller.items[at].price_silver;
        let left = self.silver.checked_sub(price);
        self.silver = left.ok_or_else(|| format!("The visitor does not have {price} silver."))?;
        seller.silver += price;
        self.items.push(seller.items.remove(at));
        Ok(price)
    }
}

fn print_ledger(
    ledger: Res<Ledger>,
    visitor: Single<&Goods, With<Visitor>>,
    printer: Res<PrintHandle>,
) {
    printer.print("\nThe ledger:".to_owned());
    for sale in &ledger.0 {
        printer.print(format!("  {sale}"));
    }
    let silver = std::iter::once(format!("{} silver", visitor.silver));
    let items = visitor.items.iter().map(|ware| ware.item.to_owned());
    let owned: Vec<String> = silver.chain(items).collect();
    printer.print(format!("The visitor now has: {}", owned.join(", ")));
}
