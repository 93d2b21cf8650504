//! Observers that forward events as messages, so that the collect system has a single input.

use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;
use walla_runtime::Speaker;

use super::{CancelId, EngineBridge};
use crate::actions::ActionResult;
use crate::agent::Agent;
use crate::ask::{Ask, Cancel, CancelHeard, asks_written};
use crate::conversation::Conversation;
use crate::speech::Speech;

/// An ask is open from here on: systems between this event and the collect system see it.
pub(crate) fn forward_ask(
    ask: On<Ask>,
    mut asks: ResMut<Messages<Ask>>,
    mut speeches: Query<&mut Speech, (With<Agent>, Allow<Disabled>)>,
) {
    open_ask(ask.event().clone(), &mut asks, &mut speeches);
}

fn open_ask(
    ask: Ask,
    asks: &mut Messages<Ask>,
    speeches: &mut Query<&mut Speech, (With<Agent>, Allow<Disabled>)>,
) {
    if let Ok(mut speech) = speeches.get_mut(ask.agent)
        && speech.is_silent()
    {
        speech.asked(0);
    }
    asks.write(ask);
}

/// Messages of two types have no order relative to each other, so the bridge records it.
pub(crate) fn forward_cancel(
    cancel: On<Cancel>,
    mut cancels: ResMut<Messages<Cancel>>,
    asks: Res<Messages<Ask>>,
    mut bridge: ResMut<EngineBridge>,
) {
    let id = cancels.write(*cancel.event()).id;
    bridge.cancel_requested(CancelId::Cancel(id), cancel.agent, asks_written(&asks));
}

pub(crate) fn forward_cancel_heard(
    cancel: On<CancelHeard>,
    mut cancels: ResMut<Messages<CancelHeard>>,
    asks: Res<Messages<Ask>>,
    mut bridge: ResMut<EngineBridge>,
) {
    let id = cancels.write(*cancel.event()).id;
    bridge.cancel_requested(CancelId::CancelHeard(id), cancel.agent, asks_written(&asks));
}

/// Adds the result to the agent's conversation and asks it to go on speaking.
pub(crate) fn forward_action_result(
    result: On<ActionResult>,
    mut results: ResMut<Messages<ActionResult>>,
    mut conversations: Query<&mut Conversation, Allow<Disabled>>,
    mut bridge: ResMut<EngineBridge>,
    mut commands: Commands,
) {
    let result = result.event();
    bridge.result_taken(results.write(result.clone()).id);
    if let Some(ask) = take_result(result, &mut conversations, &mut bridge) {
        commands.trigger(ask);
    }
}

/// Adds a result to the agent's conversation. Returns the ask that lets it go on speaking.
fn take_result(
    result: &ActionResult,
    conversations: &mut Query<&mut Conversation, Allow<Disabled>>,
    bridge: &mut EngineBridge,
) -> Option<Ask> {
    if let Ok(mut conversation) = conversations.get_mut(result.agent) {
        conversation.push(Speaker::ActionResult, result.text.clone());
    }
    bridge.ask_after_result(result)
}

/// The same for results that a system wrote as messages.
pub(crate) fn take_result_messages(
    mut results: MessageReader<ActionResult>,
    mut conversations: Query<&mut Conversation, Allow<Disabled>>,
    mut bridge: ResMut<EngineBridge>,
    mut asks: ResMut<Messages<Ask>>,
    mut speeches: Query<&mut Speech, (With<Agent>, Allow<Disabled>)>,
    _here: NonSendMarker,
) {
    for (result, number) in results.read_with_id() {
        if bridge.forget_result_taken(number.id) {
            continue;
        }
        if let Some(ask) = take_result(result, &mut conversations, &mut bridge) {
            open_ask(ask, &mut asks, &mut speeches);
        }
    }
}
