//! Actions as types of the game.

use std::any::TypeId;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use bevy_app::App;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;
use walla_runtime::{Action, CallId, action_name};

#[cfg(feature = "assets")]
use crate::actions::{ActionError, ActionSpec};
use crate::actions::{AgentActions, AgentCalled, CallRefused};

/// An agent called an action of the type `T`: an event on the agent and a message, in the order of
/// its text. The fields of the action are fields of the event.
///
/// # Examples
/// ```
/// # use bevy_app::App;
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::actions::schemars::{self, JsonSchema};
/// use bevy_walla::prelude::*;
/// use serde::Deserialize;
///
/// /// Opens the gate.
/// #[derive(Deserialize, JsonSchema)]
/// struct OpenGate { how_wide: u8 }
///
/// fn plugin(app: &mut App) {
///     app.add_action::<OpenGate>().add_observer(|call: On<ActionCall<OpenGate>>, mut commands: Commands| {
///         println!("{} opens the gate: {}", call.agent, call.how_wide);
///         commands.entity(call.agent).action_result(call.id, "The gate is open.");
///     });
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
pub struct ActionCall<T: Action> {
    /// The agent that acts.
    #[event_target]
    pub agent: Entity,
    /// The call, for its [result](crate::ActionResult).
    pub id: CallId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The action.
    pub action: T,
}

impl<T: Action> Deref for ActionCall<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.action
    }
}

/// Adds actions to an app.
pub trait AddAction {
    /// Calls of this action arrive as [`ActionCall<T>`]. The agents that may call it have it in
    /// their component [`AgentActions`](crate::AgentActions).
    fn add_action<T: Action>(&mut self) -> &mut Self;
}

impl AddAction for App {
    fn add_action<T: Action>(&mut self) -> &mut Self {
        self.add_message::<ActionCall<T>>();
        let mut types = self.world_mut().get_resource_or_init::<ActionTypes>();
        let of_name = types.0.entry(action_name::<T>()).or_default();
        // A type may be added twice.
        of_name.retain(|known| known.id != TypeId::of::<T>());
        of_name.push(ActionType {
            id: TypeId::of::<T>(),
            publish: publish::<T>,
            #[cfg(feature = "assets")]
            spec: ActionSpec::of::<T>,
        });
        self
    }
}

/// Publishes a call as an [`ActionCall`], unless the type refuses it.
type Publish = fn(&mut World, &AgentCalled) -> Result<(), String>;

/// The types that were added, by the name of their action. Several types may have one name.
#[derive(Resource, Default)]
pub(crate) struct ActionTypes(HashMap<String, Vec<ActionType>>);

struct ActionType {
    id: TypeId,
    publish: Publish,
    #[cfg(feature = "assets")]
    spec: fn() -> Result<ActionSpec, ActionError>,
}

impl ActionTypes {
    /// Whether a type with this name was added.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The action of this name, by the type that was added first.
    #[cfg(feature = "assets")]
    pub(crate) fn spec(&self, name: &str) -> Option<ActionSpec> {
        (self.0.get(name)?.first()?.spec)().ok()
    }
}

/// Publishes a call as each of the types of its name that accepts it. No effect if no type of this
/// name was added. If all of them refuse it, the call is refused.
pub(crate) fn publish_typed(world: &mut World, called: &AgentCalled) {
    // A lookup for each type: observers of the call have the whole world.
    let publish_at = |world: &World, index: usize| {
        world
            .get_resource::<ActionTypes>()?
            .0
            .get(&called.call.name)?
            .get(index)
            .map(|of| of.publish)
    };
    let (mut is_accepted, mut reason, mut index) = (false, None, 0);
    while let Some(publish) = publish_at(world, index) {
        match publish(world, called) {
            Ok(()) => is_accepted = true,
            Err(refusal) => reason = reason.or(Some(refusal)),
        }
        index += 1;
    }
    if let Some(reason) = reason.filter(|_| !is_accepted) {
        let AgentCalled { agent, tag, ref call, .. } = *called;
        let refused = CallRefused { agent, id: call.id, tag, text: call.text(), reason };
        world.write_message(refused.clone());
        world.trigger(refused);
    }
}

fn publish<T: Action>(world: &mut World, called: &AgentCalled) -> Result<(), String> {
    let AgentCalled { agent, tag, ref call, .. } = *called;
    let typed = || call.parse::<T>().map(|action| ActionCall { agent, id: call.id, tag, action });
    // Two values, because a type of an action need not be cloneable.
    let (message, event) = (typed()?, typed()?);
    world.write_message(message);
    world.trigger(event);
    Ok(())
}

/// Agents with new or changed actions.
type ChangedActions<'w, 's> =
    Query<'w, 's, (Entity, &'static AgentActions), (Changed<AgentActions>, Allow<Disabled>)>;

/// Actions that are allowed as types whose calls no event of the type delivers.
pub(crate) fn warn_of_untyped_actions(
    changed: ChangedActions,
    types: Option<Res<ActionTypes>>,
    mut warned: Local<HashSet<String>>,
    _here: NonSendMarker,
) {
    for (agent, actions) in &changed {
        let is_added = |name: &str| types.as_ref().is_some_and(|types| types.has(name));
        for name in actions.typed().filter(|name| !is_added(name)) {
            if warned.insert(name.to_owned()) {
                tracing::warn!(
                    target: "walla::load",
                    %agent,
                    action = name,
                    "no add_action for the type of this action: its calls arrive as AgentCalled only"
                );
            }
        }
    }
}
