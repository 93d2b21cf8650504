//! Warnings about settings and components without effect, once each. As all systems of the plugin
//! they run on the thread of the schedule, so that its log has them.

#[cfg(feature = "actions")]
use std::collections::HashSet;

use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;

#[cfg(feature = "actions")]
use crate::action_types::ActionTypes;
#[cfg(feature = "actions")]
use crate::actions::Actions;
use crate::agent::AgentEngine;

/// Agents with new or changed actions.
#[cfg(feature = "actions")]
type ChangedActions<'w, 's> =
    Query<'w, 's, (Entity, &'static Actions), (Changed<Actions>, Allow<Disabled>)>;

/// Actions that are allowed as types whose calls no event of the type delivers.
#[cfg(feature = "actions")]
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

/// Routes in an app with one engine.
pub(crate) fn warn_of_unused_routes(
    added: Query<Entity, (Added<AgentEngine>, Allow<Disabled>)>,
    mut is_warned: Local<bool>,
    _here: NonSendMarker,
) {
    if let Some(agent) = added.iter().next()
        && !std::mem::replace(&mut *is_warned, true)
    {
        tracing::warn!(
            target: "walla::load",
            %agent,
            "AgentEngine has no effect: the app has one engine (WallaPlugin::engine adds others)"
        );
    }
}
