"""Facts that the user states about himself, and later questions about them."""

from __future__ import annotations

from dataclasses import dataclass

from .grammar import Phrases


@dataclass(frozen=True)
class Told:
    """A fact that the user states (``says``), the reaction to it, and the later question about it."""

    key: str
    says: Phrases
    reactions: Phrases
    asks_back: Phrases
    replies_when_asked: Phrases
    recalls: Phrases
    answers: Phrases
    not_told: Phrases


TOLD_NAME = Told(
    "user",
    Phrases("""
        I am {user}.
        My name is {user}.
        I'm {user}, by the way.
        They call me {user}.
        You can call me {user}.
        ~ {user} is my name.
        Hello, I'm {user}.
        Good day. My name is {user}.
        Let me introduce myself. I am {user}.
        The name's {user}.
        I am {user}, nice to meet you.
        I'm {user}.
    """),
    Phrases("""
        Good to meet you, {user}.
        Pleased to meet you, {user}. I am {self}.
        {user}? A good name.
        Welcome, {user}.
        Well met, {user}.
        I am {self}. Welcome to {home}, {user}.
        {user}. I'll remember that.
        Nice to meet you, {user}. [What can I do for you?|What brings you here?|]
        Hello, {user}. I'm {self}.
    """),
    Phrases("""
        And who are you?
        What's your name?
        And what do they call you?
        Who are you, stranger?
        And you are?
        May I ask your name?
        What should I call you?
    """),
    Phrases("""
        I am {user}.
        {user}.
        My name is {user}.
        I'm {user}.
        ~ {user} is my name.
        ~ Call me {user}.
        They call me {user}.
    """),
    Phrases("""
        What is my name?
        Do you remember my name?
        Who am I?
        Do you know who I am?
        What did I say my name was?
        ~ Do you still know my name?
        Say my name.
        What am I called?
        What was my name again?
        Have you forgotten my name?
        Do you remember me?
        Tell me my name.
        Do you still remember my name?
        Can you tell me my name?
        Who am I again?
        I told you my name. What is it?
        What did I tell you my name was?
        Do you recall my name?
        Do you recall my name?
    """),
    Phrases("""
        You are {user}.
        {user}, you said.
        Your name is {user}.
        {user}[, of course|, if I remember right|].
        You told me you're {user}.
        You're {user}. I don't forget a name.
        I remember. You are {user}.
    """),
    Phrases("""
        You haven't told me your name.
        I don't know your name. You never said it.
        I don't know. You have not told me.
        I can't say, you never told me your name.
        No idea. Who are you?
    """),
)
TOLD_ORIGIN = Told(
    "user_home",
    Phrases("""
        I come from {user_home}.
        I am from {user_home}.
        I was born in {user_home}.
        I have travelled here from {user_home}.
        ~ My home is {user_home}.
        ~ I just arrived from {user_home}.
        I live in {user_home}.
        I came all the way from {user_home}.
        {user_home} is where I come from.
        I walked here from {user_home}.
        I grew up in {user_home}.
        I'm from {user_home}.
        I have just come from {user_home}.
        I just came here from {user_home}.
        I arrived here from {user_home}.
        I came from {user_home} today.
        My home town is {user_home}.
        {user_home} is my home.
        I am a stranger here. I come from {user_home}.
    """),
    Phrases("""
        {user_home}? That is far away.
        I've never been to {user_home}.
        All the way from {user_home}! Then you must be tired.
        {user_home}. I have heard of it. Welcome to {home}.
        And what brings you from {user_home} to {home}?
        People from {user_home} are rare here.
        From {user_home}? What is it like there?
        Then you have seen more of the world than I.
    """),
    Phrases("""
        Where do you come from?
        And where are you from?
        Where is your home?
        You are not from here. Where do you come from?
        Where did you travel from?
    """),
    Phrases("""
        From {user_home}.
        I'm from {user_home}.
        {user_home}.
        I come from {user_home}.
        I live in {user_home}.
        ~ My home is {user_home}.
        {user_home} is my home.
        My home town is {user_home}.
        I was born in {user_home}.
        I came from {user_home}.
        {user_home}, far from here.
    """),
    Phrases("""
        Where do I come from?
        Do you remember where I am from?
        Where am I from?
        What did I say, where do I come from?
        Where is my home?
        ~ Which town do I come from?
        Do you know where I come from?
        What's my home town?
        From which town do I come?
        Which town am I from?
        Where did I say I come from?
        Do you remember my home?
        Can you tell me where I come from?
    """),
    Phrases("""
        You come from {user_home}.
        From {user_home}, you said.
        {user_home}[, if I remember right|, you told me|].
        You told me you're from {user_home}.
        {user_home}. I was listening.
        Your home is {user_home}.
    """),
    Phrases("""
        I don't know. You never told me.
        You haven't told me where you come from.
        I can't say. You have not told me.
        How should I know? I don't know your home.
    """),
)
TOLD_QUEST = Told(
    "user_goal",
    Phrases("""
        I'm looking for {user_goal}.
        I am searching for {user_goal}.
        I have lost {user_goal}.
        I must find {user_goal}.
        I came here to find {user_goal}.
        ~ I'm trying to find {user_goal}.
        Somebody stole {user_goal} from me.
        I hope to find {user_goal} here.
        I need to find {user_goal}.
        I'm after {user_goal}.
        I am hunting for {user_goal}.
        I've been searching for {user_goal} for days.
        I'm trying to get {user_goal}.
        I try to find {user_goal}.
        I am here to find {user_goal}.
        I came here for {user_goal}.
        I came to find {user_goal}.
        Have you seen {user_goal}? I'm looking everywhere.
        Help me find {user_goal}.
        I would like to find {user_goal}.
        I came to look for {user_goal}.
        I am here for {user_goal}.
        I hope to find {user_goal}.
        For {user_goal}.
    """),
    Phrases("""
        {User_goal}? Not that I have seen.
        {User_goal}? I'll keep my eyes open.
        Good luck with that. I haven't seen {user_goal} here.
        {User_goal}, you say? Ask around in {home}.
        I don't know anything about {user_goal}, sorry.
        If I see {user_goal}, I'll let you know.
        Many have looked for {user_goal}.
    """),
    Phrases("""
        What are you looking for?
        What brings you here?
        What brings you to {home}?
        What do you need?
        Why are you here?
        Are you looking for something?
    """),
    Phrases("""
        I'm looking for {user_goal}.
        {User_goal}.
        I want to find {user_goal}.
        I am searching for {user_goal}.
        I need {user_goal}.
        ~ I came for {user_goal}.
        I'm trying to get {user_goal}.
        I try to find {user_goal}.
        I am here to find {user_goal}.
        I came here for {user_goal}.
        I came to find {user_goal}.
        Have you seen {user_goal}? I'm looking everywhere.
        Help me find {user_goal}.
        I would like to find {user_goal}.
        I came to look for {user_goal}.
        ~ I'm trying to find {user_goal}.
        I am here for {user_goal}.
        I hope to find {user_goal}.
        For {user_goal}.
    """),
    Phrases("""
        What am I looking for?
        Do you remember what I am looking for?
        What did I want to find?
        What did I say I was looking for?
        What was I searching for again?
        ~ What was I looking for?
        Do you know what I am after?
        What did I lose?
    """),
    Phrases("""
        You are looking for {user_goal}.
        {User_goal}, you said.
        You told me you're looking for {user_goal}.
        {User_goal}[, wasn't it|, if I remember right|].
        I remember. You want {user_goal}.
        You're after {user_goal}.
    """),
    Phrases("""
        I don't know. You never told me.
        You haven't told me what you are looking for.
        I can't say. You did not tell me.
        I don't know what you're looking for.
    """),
)
TOLD_WORK = Told(
    "user_work",
    Phrases("""
        I am {user_work}.
        I'm {user_work} myself.
        I work as {user_work}.
        I earn my living as {user_work}.
        ~ I am {user_work} by trade.
        ~ I used to be {user_work}.
        I'm {user_work}, that's my trade.
        By trade I am {user_work}.
        I used to work as {user_work}.
        I was {user_work} once.
        I want to be {user_work}.
        My trade? I'm {user_work}.
        My work is hard. I am {user_work}.
    """),
    Phrases("""
        {User_work}? That must be hard work.
        {User_work}! {home} could use one.
        A good trade. I'm {a_trade} myself.
        I once wanted to be {user_work}.
        Is that so? I have never met {user_work} before.
        Honest work. I respect that.
        {User_work}? You don't look like one.
    """),
    Phrases("""
        And what do you do?
        What is your trade?
        What do you do for a living?
        And what is your work?
    """),
    Phrases("""
        I am {user_work}.
        I'm {user_work}.
        {User_work}.
        I work as {user_work}.
        I'm just {user_work}.
        ~ I am {user_work} by trade.
        I'm {user_work}, that's my trade.
        By trade I am {user_work}.
        I used to work as {user_work}.
        I was {user_work} once.
        I want to be {user_work}.
        My trade? I'm {user_work}.
        My work is hard. I am {user_work}.
    """),
    Phrases("""
        What is my trade?
        What do I do for a living?
        Do you remember my trade?
        What did I say I do?
        What is my work?
        ~ Do you know what I do?
        Do you know my trade?
        Do you know what my work is?
        What do I do?
        What is my job?
        Do you remember what I do?
        What did I tell you I do?
    """),
    Phrases("""
        You are {user_work}.
        {User_work}, you said.
        You told me you're {user_work}.
        {User_work}[, if I remember right|].
        You work as {user_work}.
    """),
    Phrases("""
        I don't know. You never told me.
        You haven't told me what you do.
        I can't say. You did not tell me your trade.
    """),
)
TOLD = (TOLD_NAME, TOLD_ORIGIN, TOLD_QUEST, TOLD_WORK)

REPEAT_QUESTIONS = Phrases("""
    What did you say?
    Can you repeat that?
    Say that again.
    Pardon?
    Sorry, what was that?
    ~ I didn't hear you.
    Come again?
    Could you say that once more?
    I did not hear that.
    I didn't understand. Say it again.
    I couldn't hear you.
    What?
    Excuse me, what did you say?
    Please say that again.
    I did not understand you.
""")
