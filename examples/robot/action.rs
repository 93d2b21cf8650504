//! Actions that the agent can call. Each is checked before anything moves.

use std::time::Duration;

use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::actions::{Action, ActionPolicy};
use bevy_walla::prelude::*;
use serde::Deserialize;

use crate::base::Task;
use crate::house;

/// The longest pause that can be ordered.
const MAX_PAUSE: Duration = Duration::from_secs(120);

/// Drives to a place.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Goto {
    place: String,
}

/// Fetches a thing.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Fetch {
    item: String,
}

/// Brings an item to a place.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Deliver {
    item: String,
    place: String,
}

/// Cleans a room.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Clean {
    place: String,
}

/// Waits for some time.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Wait {
    // No maximum in the schema: a model that is asked for a longer pause would be constrained to
    // another number. The check refuses it instead.
    seconds: u64,
}

/// Stops at once.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Stop {}

/// Drives to the dock and charges the battery.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Charge {}

/// An action of the robot.
pub trait Order: Action {
    /// The task of the base.
    ///
    /// # Errors
    /// Why the robot refuses, in words for its agent.
    fn task(&self) -> Result<Task, String>;
}

impl Order for Goto {
    fn task(&self) -> Result<Task, String> {
        house::place(&self.place).map(Task::Go)
    }
}

impl Order for Fetch {
    fn task(&self) -> Result<Task, String> {
        house::item(&self.item).map(Task::Fetch)
    }
}

impl Order for Deliver {
    fn task(&self) -> Result<Task, String> {
        Ok(Task::Deliver(house::item(&self.item)?, house::place(&self.place)?))
    }
}

impl Order for Clean {
    fn task(&self) -> Result<Task, String> {
        house::place(&self.place).map(Task::Clean)
    }
}

impl Order for Wait {
    fn task(&self) -> Result<Task, String> {
        let pause = Duration::from_secs(self.seconds);
        let is_short = pause <= MAX_PAUSE;
        is_short.then_some(Task::Wait(pause)).ok_or_else(|| "The time is too long.".to_owned())
    }
}

impl Order for Stop {
    fn task(&self) -> Result<Task, String> {
        Ok(Task::Stop)
    }
}

impl Order for Charge {
    fn task(&self) -> Result<Task, String> {
        Ok(Task::Charge)
    }
}

/// The actions with the places and items of the house.
///
/// A result never leads to a new action, because only the asks of [orders](crate::talk) may act:
/// their policy is [`ActionPolicy::Auto`].
pub fn actions() -> AgentActions {
    AgentActions::new()
        .policy(ActionPolicy::Off)
        .allow::<Goto>()
        .choices::<Goto>("place", house::place_names())
        .allow::<Fetch>()
        .choices::<Fetch>("item", house::item_names())
        .allow::<Deliver>()
        .choices::<Deliver>("item", house::item_names())
        .choices::<Deliver>("place", house::place_names())
        .allow::<Clean>()
        .choices::<Clean>("place", house::place_names())
        .allow::<Wait>()
        .allow::<Stop>()
        .allow::<Charge>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The task of a call with these arguments, as the model writes them.
    fn task_of<T: Order>(arguments: &str) -> Result<Task, String> {
        serde_json::from_str::<T>(arguments).map_err(|error| error.to_string())?.task()
    }

    #[test]
    fn possible_orders_are_accepted() {
        for name in house::PLACES.map(house::Place::name) {
            let arguments = format!(r#"{{"place": "{name}"}}"#);
            let place = house::place(name).unwrap();
            assert_eq!(task_of::<Goto>(&arguments), Ok(Task::Go(place)));
            assert_eq!(task_of::<Clean>(&arguments), Ok(Task::Clean(place)));
        }
        let (cup, dock) = (house::item("cup").unwrap(), house::DOCK);
        assert_eq!(task_of::<Fetch>(r#"{"item": "cup"}"#), Ok(Task::Fetch(cup)));
        let deliver = task_of::<Deliver>(r#"{"item": "cup", "place": "dock"}"#);
        assert_eq!(deliver, Ok(Task::Deliver(cup, dock)));
        assert_eq!(task_of::<Wait>(r#"{"seconds": 120}"#), Ok(Task::Wait(MAX_PAUSE)));
        assert_eq!(task_of::<Stop>("{}"), Ok(Task::Stop));
        assert_eq!(task_of::<Charge>("{}"), Ok(Task::Charge));
    }

    #[test]
    fn other_orders_are_refused() {
        let refused = [
            task_of::<Goto>(r#"{"place": "moon"}"#),
            task_of::<Goto>(r#"{"place": ""}"#),
            task_of::<Goto>(r#"{"place": "cellar"}"#),
            task_of::<Goto>("{}"),
            task_of::<Goto>(r#"{"place": ["dock"]}"#),
            task_of::<Clean>(r#"{"place": "moon"}"#),
            task_of::<Fetch>(r#"{"item": "elephant"}"#),
            task_of::<Deliver>(r#"{"item": "cup", "place": "moon"}"#),
            task_of::<Deliver>(r#"{"item": "elephant", "place": "dock"}"#),
            task_of::<Wait>(r#"{"seconds": 121}"#),
            task_of::<Wait>(r#"{"seconds": -1}"#),
            task_of::<Wait>(r#"{"seconds": 18446744073709551615}"#),
        ];
        for (at, task) in refused.into_iter().enumerate() {
            assert!(task.is_err(), "{at}: {task:?}");
        }
    }

    /// Every value that the model may write is known to the house.
    #[test]
    fn the_choices_are_those_of_the_house() {
        let actions = actions();
        assert_eq!(actions.fault(), None);
        let text = |spec: &bevy_walla::actions::ActionSpec| spec.parameters().to_string();
        let all: String = actions.specs().iter().map(text).collect();
        for name in house::place_names().chain(house::item_names()) {
            assert!(all.contains(name), "{name} in {all}");
        }
        let is_refused = |name: &&str| house::place(name).is_err();
        assert_eq!(house::place_names().filter(is_refused).collect::<Vec<_>>(), ["cellar"]);
        assert!(house::item_names().all(|name| house::item(name).is_ok()));
    }
}
