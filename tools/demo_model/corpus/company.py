"""Statements of other characters (and of players who make statements), and the reactions to them."""

from __future__ import annotations

from .grammar import Phrases

TELLS_RUMOUR = Phrases("""
    They say {rumour}.
    I heard that {rumour}.
    Have you heard? {Rumour}.
    People say that {rumour}.
    {Rumour}, they say.
    ~ Word is that {rumour}.
    Did you know that {rumour}?
    On the road I heard that {rumour}.
    Listen to this: {rumour}.
    {Rumour}. Everyone talks about it.
    Someone told me that {rumour}.
    The whole town says that {rumour}.
    The word is that {rumour}.
    Here is some news: {rumour}.
    They told me that {rumour}.
    I have news. {Rumour}.
    My friend says that {rumour}.
    It is true that {rumour}.
    {Rumour}. What do you think?
    Do you believe that {rumour}?
    I was told that {rumour}.
""")
HEARS_RUMOUR = Phrases("""
    Is that so? I had not heard that.
    {Rumour}? Who told you that?
    {Rumour}? That is bad news for {home}.
    I wouldn't believe everything people say.
    So {rumour}? Strange times.
    You don't say! {Rumour}?
    I heard the same.
    That can't be true.
    Then we had better be careful.
    Really? Tell me more.
    News like that travels fast. Who else knows?
    I must tell the others in {home}.
    Let people talk. I don't believe it.
""")
TELLS_SELF = Phrases("""
    I am {user}, {user_work} from {user_home}.
    I'm {user}, {user_work}. I come from {user_home}.
    My name is {user}. I'm {user_work} in {user_home}.
    {user}, {user_work} from {user_home}, at your service.
    They call me {user}. I am {user_work} in {user_home}.
    ~ Good evening. I'm {user}, {user_work} of {user_home}.
    I am {user} from {user_home}. I work as {user_work}.
    {user} is my name, and I am {user_work} in {user_home}.
    I'm {user}. I'm {user_work}, and {user_home} is my home.
    Well met. {user}, {user_work}. I have come from {user_home}.
    I'm {user_work} from {user_home}. Call me {user}.
    The name is {user}. {user_home} is my home and I am {user_work}.
    Good evening. I am {user} from {user_home}, {user_work}.
    Good day, I'm {user}, {user_work} of {user_home}.
    Hello. {user} is my name, {user_work} from {user_home}.
    I'm called {user}. I come from {user_home} and I'm {user_work}.
""")
HEARS_SELF = Phrases("""
    Well met, {user}. I am {self}, {a_trade}.
    Good to meet you, {user}. What brings you to {home}?
    {User_work} from {user_home}? Welcome to {home}, {user}.
    Welcome, {user}. I'm {self}, the {trade} here.
    {user}, is it? I've never been to {user_home}.
    Pleased to meet you, {user}. How are things in {user_home}?
    Ah, {user_work}! We need one here. I'm {self}.
    {user}. I'll remember the name. I am {self}.
""")
OFFERS = Phrases("""
    I sell {one} for {price}. Do you want one?
    Would you like {one}? Only {price}.
    {One}, only {price}. Interested?
    I have {one} for you. {Price}.
    You look like you need {one}. {Price}, and it's yours.
    ~ I could sell you {one} for {price}.
    Buy {one} from me. It's only {price}.
    My {many} cost {price} each.
    For {price} I would give you {one}.
    Can I interest you in {one}? It costs {price}.
    {Price} for {one}. What do you say?
    {One} costs {price} here.
    Could I sell you {one}? {Price}.
    I could offer you {one} for {price}.
    Do you need {one}? I ask {price}.
    Take {one} for {price}.
    I have {many} for sale, {price} each.
    {Price}, and {one} is yours.
    Do you want to buy {one} for {price}?
""")
HEARS_OFFER = Phrases("""
    {Price} for {one}? That's too much for me.
    {Price}? I'll think about it.
    No, thank you. I don't need {one}.
    {One} for {price}? Why not. I'll take it.
    {Price} is a fair price. I'll take {one}.
    I have no coin to spare for {one}.
    What would I do with {one}?
    Hm, {price}. Is it any good?
    Maybe tomorrow. {Price} is a lot.
    {One}? I have been looking for that.
""")
TELLS_FEELING = Phrases("""
    I am so tired today.
    What a day. My feet hurt.
    I feel wonderful today!
    I'm in a terrible mood.
    I am worried.
    ~ I could eat a horse.
    I'm so hungry.
    I'm thirsty.
    I miss my home.
    I couldn't sleep last night.
    I am cold.
    I feel alone.
    My back hurts.
    ~ I'm so happy!
    I am bored.
    I lost everything I had.
    I got married yesterday!
    My horse died.
    I am so happy today.
    I'm happy.
    I could sleep for days.
    I could eat something.
    I want to eat.
    I am hungry.
    I'm sad today.
    My head hurts.
    I am afraid.
    I'm so angry!
    I had a terrible day.
    I had a wonderful day!
    My dog died.
    My friend is ill.
    I won some money today!
    I am drunk.
""")
HEARS_FEELING = Phrases("""
    Sit down and rest for a while.
    I know that feeling.
    Tell me more. What happened?
    It will pass, friend. It always does.
    We all have such days.
    Then stay a while. It's warm in here.
    I hear that a lot in {home}.
    Is there anything I can do?
    Talk to me. It helps.
""")
FILLERS = Phrases("""
    Ha, good to know.
    I see.
    Fair enough.
    Good to hear.
    Is that so?
    ~ That's good to know.
    Aye, I believe you.
    Hm, interesting.
    You speak the truth.
    Well, well.
    I thought so.
    Thank you.
    I'll keep that in mind.
    ~ Sounds right to me.
    Same here.
    Not bad.
    That makes two of us.
    We'll see.
    That's good.
    That sounds good to me.
    That sounds right.
    You are right.
    Right.
    Yes, that's true.
    It sounds like that.
    True.
    I think so too.
    Good for you.
    I understand.
    No doubt.
    That is true.
    So they say.
    I know.
    Of course.
""")
REQUESTS = Phrases("""
    Can you [open the door|close the window|hold this|lend me some money|keep a secret|watch my horse|carry this]?
    Please [help me|come with me|follow me|wait here|sit down|sing something|be quiet].
    Come with me.
    Follow me.
    Let's go on an adventure.
    ~ Join me.
    Will you fight for me?
    Teach me your trade.
    Give me something for free.
    Lend me [five silver|a horse|your knife].
    Show me the way out of {home}.
    Can I stay with you tonight?
    Come and join me.
    Will you join me?
    Come along.
    Stand up.
    Give me your hand.
    Show me your [hands|shop|house|sword].
    Take this.
    Buy me a drink.
    Sit down.
    Look at this.
""")
HEARS_REQUEST = Phrases("""
    I can't leave my work[, sorry|, friend|].
    Not today[, friend|, I'm afraid|].
    I must stay here in {home}.
    I'd like to, but there is too much to do.
    Ask me again when the work is done.
    That's not something I can do.
    I'm {a_trade}, not an adventurer.
    Maybe another time.
    And what would I get for that?
""")
