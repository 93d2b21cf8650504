"""Parts of the requests that :mod:`corpus.requests` composes: all of it is training's, nothing is held out.

Slots: a ware as ``{one}``, ``{many}``, ``{bare}``; ``{act}``, an order without its politeness; ``{the_x}``, who attacks;
and the words of ``Composer.words``. Sentences begin in lower case, since an opener may precede them.
"""

from __future__ import annotations

from . import words
from .grammar import Phrases

# Words

ROLES = list(words.RELATIONS)
ADVERBS = words._words("quick, careful, gent, slow, silent, brave, calm, prompt, rapid, swift, proper, thorough, glad, immediate, soft, quiet, neat, final, simp, sudden, brief, direct, patient, secret, smart, clever, firm, bold, polite, clear, clean, wise, eager, cheerful, great, loud, nice, free, true, sure, honest, humb, hasti, stealthi, speedi, mere, main, large, real, late, deep, safe")
WEAPONS = words._words("knife, sword, club, axe, hammer, spear, dagger, whip, staff, stick, stone, rock, bottle, chair, pan, brick, torch, crossbow, sabre, mace, pitchfork, shovel, rope, chain, cleaver, scythe, lance, cane, fist, bat, poker, sickle, stool, mug, lantern, needle, saw, pistol, rifle, bow")
WEAPON_QUALITIES = words._words("long, heavy, sharp, burning, iron, broken, bloody, huge, old, poisoned, big, short, bent, curved, glowing, hidden, small")
BODY = words._words("head, face, arm, leg, back, belly, chest, shoulder, hand, neck, nose, knee, ribs, ear, jaw, foot, stomach, heart, skull, side, eye, mouth")
BONES = words._words("neck, nose, arm, leg, jaw, back, ribs, fingers, knees, skull, teeth, hands, bones, every bone")

# Parts of speech

OPENERS = Phrases("""
    [well|right|fine|okay|so|now|good|hm|ah|oh|yes|yes, yes|all right|hey|hello|listen|look|friend|very well|now then|excuse me|sorry|pardon me|please|tell you what|wonderful|perfect|great|enough talk|at last|finally|you know what|let me think|let me see|let's see|one thing|one more thing|by the way|to be honest|in that case|after some thought|since you ask|no doubt|if you don't mind|if I may|with pleasure|as for me|for my part|today|first of all|actually|honestly|indeed|sure|of course|certainly|no more waiting|quick|quickly|hurry|come on|my friend|good {trade}|dear {trade}|master {self}|{Self}|{Trade}|hey {self}|hey {trade}|you there|you|good day|good morning|good evening|hail],
    [right|fine|okay|so|good|hm|ah|oh|yes|well|ready|listen|all right|very well|excuse me|wonderful|perfect|great|enough talk|at last|finally|let me think|let me see|one thing|attention|I have decided|I have thought about it|my mind is made up|it is settled|no more waiting|you asked what I want|I was looking for you|there you are|I have a wish|I have something to say|I need your help|I need you|good to see you|what a day|it is getting late|hello|good day|good evening|hail|sorry to disturb you|I have no time to lose].
    [well|hm|ah|oh|er|um|so]...
    [I have decided|my wish|what I want|here is what I want|simple|listen to this|in short|just this|a request|one wish].
    [ha|hey|you|quick|look here|good news|at last|hurry|ah]!
    {Odd},
    {Odd}!
""")
CLOSERS = Phrases("""
    [thank you|thanks|please|be quick|quickly|hurry|and be quick|I am in a hurry|that's all|nothing else|that will be all|no more, no less|I mean it|I insist|now|today|if possible|if you can|I'd be grateful|you would help me a lot|it is important|it matters to me|my {role} is waiting|{Name} is waiting|I have been waiting for this|what do you say|don't make me wait|before it gets dark|I will not ask again|you won't regret it|I will remember it|we don't have all day].
    [quick|now|hurry|thank you|please|thanks a million]!
    [will you|would you|understood|all right|okay|agreed|yes]?
""")
TAILS = Phrases("""
    [please|thank you|thanks|friend|my friend|{self}|{trade}|if you can|if it's no trouble|if I may ask|right away|at once|right now|for once|this time|today|as soon as you can|before I change my mind|and quickly|and be quick|and that's that|and nothing else|will you|would you|okay|after all|then|too|of course|at last|if you have a moment|when you are ready|before it is too late|for {name}|with care]
""")
REASONS = Phrases("""
    [I need it for my {role}|my {role} needs it|my {role} asked for it|it is for my {role}|it is for {name}|{Name} told me to ask you|{Name} sent me|I lost mine|mine is broken|I have wanted that for years|I have been looking forward to this|the road is long|it is cold outside|I leave tomorrow|I have the whole day|there is a feast tonight|I had a hard day|I can't do it alone|you are the best at it|my {role} said you are the right one|we need it for the {noun}|I have {a_noun} and need the rest|my {noun} is {odd}|people say you know how|it was {name}'s idea|the {official} wants it so|I promised it to my {role}|it will be useful|my old {noun} is gone]
""")
LINKS = ["because", "since", "as", "for"]

# Purchases

_HEDGE = "[I guess|I suppose|I believe|I reckon|I daresay|I'd say|I imagine|I expect|I feel|it seems|it looks like|looks like|no doubt|surely|clearly|I'm sure|I am certain|something tells me|my heart says|my stomach says|I {verb}|my {noun} says|after all this talk|having thought it over|thinking it over|all things considered|since I can afford it|without further thought]"
_WANTS = f"[I'll|I'll|I will|I shall|I'd like to|I would like to|I want to|I wish to|I'd love to|I'd rather|I'm going to|I am here to|I came to|I have come to|I've decided to|I have decided to|I decided to|I must|I have to|I need to|let me|allow me to|I'd be happy to|I'm ready to|I am happy to|I'd gladly|I'll gladly|I'll just|I'll happily|I suppose I'll|I guess I'll|I believe I'll|I reckon I'll|I hope to|I had better|I can't wait to|I might as well|we'll|we want to|we would like to|we shall|I was sent to|I'm supposed to|my {{role}} told me to|nothing can stop me, I'll|let us|it is best that I|time for me to|it's my turn to|I feel like I should|{_HEDGE} I'll|{_HEDGE} I'll|{_HEDGE} I'll|{_HEDGE} I want to|{_HEDGE} I'd like to|I should|I really want to|I really must|I simply have to]"
_GETS = "[buy|buy|take|take|have|get|purchase|pay for|take home|take along|pick|choose|acquire|order|pick up|carry away|own|walk away with|leave with|go home with|try|treat myself to|spend my money on|take with me|add to my bag|part with my coins for|settle on|decide for|{verb}|{verb} [for|on|with|up|to|off|at|in|away]|{verb} [for|on|with]]"
_IT = "[{one}|{one}|{one}|the {bare}|the {bare}|the {bare}|this {bare}|that {bare}|your {bare}|one {bare}|one of the {many}|one of your {many}|one of those {many}|one of these {many}|exactly one {bare}|a single {bare}|just one {bare}|only the {bare}|that {bare} over there|the {bare} on the shelf|the {bare} there|the {bare} you have there|your best {bare}|your finest {bare}]"
_MAY = "[may I|can I|could I|might I|would I be able to|am I allowed to|is it possible to|would it be possible to|is there a chance to|do you mind if I|is it all right if I|what if I just|how can I|where do I pay to|shall I|would you let me|will you let me|can you let me|could you let me]"
_MONEY = "[the money|my coins|the coins|my purse|my last coins|the {currency}|enough {currency}|my gold|the full price|what you ask|my wages]"

PURCHASES = Phrases(f"""
    {_WANTS} {_GETS} {_IT}.
    {_WANTS} {_GETS} {_IT}.
    {_WANTS} {_GETS} {_IT}.
    {_WANTS} {_GETS} {_IT}.
    {_WANTS} {_GETS} {_IT} from you.
    {_MAY} {_GETS} {_IT}?
    {_MAY} {_GETS} {_IT}?
    [please|] [give|hand|sell|bring|pack|fetch] me {_IT}.
    [sell|wrap up|pack|prepare|fetch|get out|put aside|take down|box up|bring] {_IT} [for me|for your customer|and I pay|, I will pay for it|].
    [can|could|would|will|won't] you [give|hand|sell|bring|fetch|pack|prepare|wrap up|reserve] [me {_IT}|{_IT} for me]?
    [I want you to|I need you to|I'd like you to|I ask you to|it is time that you|you can|you may|you should|you could] [sell|give|hand|bring] me {_IT}.
    {_IT}[.|!|, and that is all.|, nothing more.|, I say.|, if I may.|, for a start.|, no question.|, and quickly.]
    {_IT}[ for me| for this customer| to take away| to go| for the road| on the counter| in my bag| into my hands][.|!|, please.]
    make [that|it] {_IT}.
    put {_IT} [on the counter|in my bag|into my basket|on my bill|aside for me, I pay now|in my hands].
    [{_IT}|the {{bare}}] [will be mine|is coming with me|comes home with me|goes with me|shall be mine|must be mine|belongs in my house|is my choice|is what I choose|is what I came for|is all I want|is all I need|is the thing for me|is my pick|is the one I want|has found a buyer|has a new owner now, me].
    my [choice|pick|order|decision|wish] [is|will be|falls on|has fallen on|would be] {_IT}.
    [I choose|I pick|I take|I order|I buy|I claim|I decide for|I settle on|I vote for|I want|I need|I demand|I request|I would have|I must have|I can use|I could really use|I long for|I fancy|I'd fancy] {_IT}[.|, so sell it to me.| and I'll pay for it.|, here is {_MONEY}.].
    [here is|here's|take|there you have|I have brought|I brought|I put down|on the counter lies|count] {_MONEY}[, and now {_IT}| for {_IT}|, so {_IT}|. I want {_IT}|. Give me {_IT}| in exchange for {_IT}].
    I [pay|give you|offer you|trade you] {_MONEY} for {_IT}.
    {{price}} for {_IT}? [a deal|agreed|that's fair|I'll pay that|done|fair enough|I can pay that|sold|I accept|that is cheap][.|!|. I'll take it.|. Give it to me.]
    {{price}} is [fine|fair|a good price|not much|what I have] for {_IT}. [I'll take it|I buy it|sold|it's a deal|hand it over|give it to me].
    [you've convinced me|you have sold me|you talked me into it|I'm convinced|that settles it|I can't resist|all right, you win|say no more|what luck|that's the one|exactly what I need|just what I was looking for|there it is]: {_IT}.
    [what a|such a|a truly] [fine|lovely|good|nice|splendid|handsome|useful|{{odd}}] {{bare}}[! I'll {_GETS} it.|. I must have it.|. Sell it to me.|. Give it to me.|. I'm buying it.|! Mine.].
    [the|this|that|your] {{bare}} [looks|seems|feels|is] [good|fine|solid|perfect|right|nice|cheap|well made|strong|useful|just right|like a bargain|better than mine|worth the money|good enough][. I'll {_GETS} it.|, so I'll {_GETS} it.|. I'm buying.| and I want it.|. Sold!|. How do I pay?|. Hand it over.]
    [I've|I have] [been looking for|searched everywhere for|come a long way for|saved up for|dreamed of|always wanted|waited for|made up my mind about] {_IT}[. Sell it to me.|, and now I'll {_GETS} it.|. Here is {_MONEY}.|. I'll {_GETS} it today.].
    *[puts|lays|throws|counts|drops|slams] {_MONEY.replace("my ", "the ").replace("what you ask", "some coins")} [on|onto] the [counter|table]* {_IT}[.|, please.|!].
    *[points at|reaches for|picks up|looks at|nods at|taps on|takes] the {{bare}}* [I'll {_GETS} this.|This one, please.|I'll take that one.|How do I pay?|Mine now. Here is {_MONEY}.|Sold.|I want that.]
    [I'm|I am] [buying|taking|getting|having|choosing|ordering|paying for|in the market for|here for|after|hungry for|thirsty for|in need of|in want of|keen on] {_IT}[.|, if you'll sell.|, so let us trade.| today.].
    [there's|there is|I have] [money|a coin|a purse full of coins|something] [for you|in it for you] if [you sell me|I get|you hand me] {_IT}.
    [I could do with|I wouldn't say no to|nothing beats|now I need|what I need now is|what I want is|all I want is|the thing I need is|today I want|give me a moment. Yes,|I'm here to collect] {_IT}[.|. I pay at once.|. I'll buy it.].
    [would you|will you|can you|could you|do you want to|are you ready to] [part with|sell|let go of|give up] {_IT}? I'll pay.
    [let's trade|let us make a deal|a deal|let's do business|do we have a deal]: {_MONEY} for {_IT}.
    [if you still have|since you have|as you sell|now that I see] {_IT}, I'll {_GETS} [it|one].
    [instead of that|on second thought|better|rather|even better|then|in the end|after all], {_IT}[.|, please.|. I'll take it.].
    [no {{noun}} for me|forget the {{noun}}|I don't need {{a_noun}}|not {{a_noun}}], [just|but|only|rather] {_IT}[.|, please.| for me.].
""")
COUNT_PURCHASES = Phrases(f"""
    {_WANTS} {_GETS} {{n}} {{many}}.
    {_WANTS} {_GETS} {{n}} [of your|of the|of those|of these] {{many}}.
    {_MAY} {_GETS} {{n}} {{many}}?
    [please|] [give|hand|sell|bring|pack|fetch] me {{n}} {{many}}.
    [can|would|will] you [give|hand|sell|bring|fetch|pack] me {{n}} {{many}}?
    {{n}} {{many}}[.|!|, and that is all.|, nothing more.] [|Here is {_MONEY}.]
    {{n}} {{many}} [for me|to go|for the road|in my bag|on the counter].
    make [that|it] {{n}} {{many}}.
    my [choice|order|wish] is {{n}} {{many}}.
    [I choose|I take|I order|I want|I need|I buy] {{n}} {{many}}.
    [I need|my {{role}} needs] {{many}}. [{{n}}|give me {{n}}|I'll take {{n}}|sell me {{n}}][.|, please.| of them.]
    here is {_MONEY} for {{n}} {{many}}.
""")
NO_PURCHASES = Phrases("""
    [I|my {role}|{name}|somebody|the {official}] [bought|had|sold|lost|found|stole|broke|gave away|took|saw|paid for|ordered|got] {one} [yesterday|last week|last year|long ago|here once|from you|in {place}|from {name2}|for the feast|years ago|and was happy|when I was young|this morning].
    [I|we] [already|once|never] [bought|had|owned|used|saw] {one}[.| in {place}.].
    [maybe|perhaps|some day|next year|tomorrow|next week|when I am rich|later|another time|one day] I'll [buy|have|take|get] {one}[.|, but not now.|, who knows.].
    I'll [have a look at|ask about|dream of|ask my {role} about] the {bare} [tomorrow|later|next week|some other day|when I have money|another time].
    I [don't|do not] [want|need|like|trust|know|use|understand] [{one}|the {bare}|your {many}|{many}][.| any more.| today.].
    I [won't|will not|would never|will never|can't|don't want to] [buy|take|have|pay for|touch|use|order] [{one}|the {bare}|your {many}|any {many}][.| today.| again.].
    if I [had money|were rich|had a house|needed it|were you|found a purse], I [would|might] [buy|have|take|keep|want] {one}.
    I [would|might] [buy|have|take|want|like] {one} if I [had money|were rich|had a house|had a use for it|were younger].
    I wish I [had|owned|could make|knew how to use] {one}.
    [{name}|my {role}|the {official}] [always buys|never buys|makes|collects|sells|repairs|hates|loves|dreams of|talks about|has|owns|lost|broke] {many}[.| in {place}.].
    [{name}|my {role}|the {official}] [will buy|is going to buy|wants to sell|has sold|could make|plans to buy] {one} [tomorrow|next week|some day|in {place}].
    [the|this|that|your] {bare} [is|looks|seems|was] [pretty|old|heavy|strange|beautiful|broken|like mine|well made|small|too big|from {place}|odd|expensive|famous here|a work of art].
    [{many}|these {many}|your {many}] [were cheaper|were better|got more expensive|were rare|sold well] [last year|once|before the war|in {place}].
    [nobody|everybody|hardly anyone|who still|half of {place}] [needs|buys|likes|uses|has] {many}[.| these days.| any more.].
    [have you ever made|did you sell|who bought|did {name} buy|do you like|did you make|have you seen|who needs|do people still buy|did anyone steal|was it you who sold] {one}?
    [don't|do not|never|you should not|please don't] [sell|give|show|lend] [{name}|my {role}|anyone|them] [the {bare}|{one}|that {bare}].
    I am not [here for|interested in|looking for|buying|sure about|fond of] [{one}|the {bare}|your {many}].
    [no|not the|enough of] {bare}, [thank you|thanks|I have one|not today|not for me].
    {one}? [no, thank you|not for me|I have one|too much for my purse|what would I do with it|maybe another day][.|!].
    [I'm only|I am just|we are just] looking. [A nice|A fine|A pretty] {bare}, though.
    *[looks at|touches|admires|sniffs at|walks past|puts back|turns away from] the {bare}*
    [there was|I had a dream about|people talk about|I read about|we laughed about|my {role} told me about] {one}[.| in {place}.].
""")

# Orders

ORDERS = Phrases("""
    {act}.
    {act}!
    please {act}.
    {adverb} {act}.
    {adverb} {act}[.|!|, please.|, {adverb}.].
    {act} {adverb}.
    [can|could|would|will|won't] you [please|quickly|now|just|also|maybe||||] {act}[?|, please?| for me?| for us?| now?| at once?].
    [I want|I need|I would like|I'd like|I'd love|I order|I command|I ask|I beg|I advise|I expect|I tell|I allow|I urge|I would ask|we want|we need|they want|{name} wants|my {role} wants|the {official} wants|the {official} orders|everybody wants] you to {act}[.|.| now.| at once.].
    you [should|must|have to|ought to|are to|shall|need to|may|could|can|will|had better|might want to|are supposed to|are asked to|are needed to|were told to|are free to] [now||||] {act}.
    your [task|job|order|duty|work|next task|mission] [is|is now|today is|will be] to {act}.
    [the next thing|what I want|all I want|the plan|my wish|the best thing|the only thing left|my order|what we need now|first of all, your task] is [that you|for you to] {act}.
    it [is|would be] [time|important|good|best|wise|nice|kind of you|necessary|right|your turn|high time|your job|up to you] [to|that you|for you to] {act}.
    [would you mind? please|would you be so kind as to|would you be so good as to|could I ask you to|may I ask you to|can I get you to|are you able to|are you willing to|is it possible for you to|would it trouble you to|shall we|why not|why don't you|why don't we|how about you go and|do you have time to|have you time to|do you want to|don't you want to|isn't it time to] {act}?
    [be so kind and|be so good and|be a friend and|do me a favour and|go and|go ahead and|come and|come on and|try to|don't forget to|remember to|start to|begin to|hurry to|go on,|just|do|let's|let us|make sure to|see that you|feel free to|get ready to|help me:|quick,|now|next|first|then|once more,|again:|one more time,] {act}.
    [I have|here is|this is] [a task|an order|a request|a job|something] for you: {act}.
    [somebody|someone|one of us] [has to|must|should|needs to] {act}[, and that is you.|. You do it.|, so do it.|. Go on.]
    [I'd|I would|we would] [appreciate it|be happy|be grateful|thank you|like it|pay you|be pleased] if you [would|did|went to] {act}.
    [my {role}|{name}|the {official}] [says|said|thinks|asks|tells me] [that |]you [should|must|can|could|ought to] {act}.
    [what about this|my order|listen|attention|new order|urgent|a request|step one|the task|do this|I repeat|so]: {act}.
    [if you have time|if you can|when you are ready|before you go|as you are here|for {name}|for my {role}|for the {official}|after that|without delay|with care], {act}.
    [I can't do it|my hands are full|I am too tired|you know how|you are the best at it|nobody else can|there is no time|it must be done]. {act}[.|!|, please.].
    don't [just stand there|wait|be shy|be lazy|worry]. {act}[.|!].
    *[points|nods|waves|snaps the fingers|looks at you|smiles]* {act}[.|!|, please.].
""")
NO_ORDERS = Phrases("""
    [I|my {role}|{name}|somebody|the {official}] {past} the {x} [yesterday|last week|last year|long ago|once|this morning|for the feast|already|and it was good].
    [don't|do not|never|please don't|you must not|you should not|nobody should|no one may|you need not] {verb} the {x}[.|!| yet.| today.].
    [I|{name}|my {role}|the {official}] [will|can|would never|won't|tried to|had to|refused to|couldn't] {verb} [the {x}|{x_a}][ tomorrow| later| in {place}| alone| without you|].
    [the|your|this] {x} [was|has been|is already] {past}[, I see.| yesterday.| by {name}.| once.].
    [who|did you ever see who|did {name} ever say who] {past} the {x}?
    [when|why] [did you|did {name}|did they] {verb} the {x}?
    [is it hard to|is it fun to|do people|did you ever|do you like to|how do they|does {name}] {verb} [{x_a}|the {x}]?
    if I [had time|were you|knew how|were strong], I would {verb} the {x}.
    [there is no need to|nobody has to|it is too late to|I forgot to|I used to|I learned to|it took me years to|it is forbidden to] {verb} [the {x}|{x_a}].
    [once|years ago|as a child], I [saw someone|watched {name}|helped my {role}] {verb} {x_a}.
    the {x} [is|looks|was|seems] [old|new|pretty|heavy|{odd}|from {place}|mine|broken|a gift|like mine].
    [{name}|my {role}] [has|had|made|lost|found|stole|bought|wants] {x_a}.
""")
ANSWERS_TALK = Phrases("I see.\nIs that so?\nAs you say.\nI understand.\nIf you say so.\nHm.\nGood to know.\nSo it is.\nWell, well.\nI hear you.")

# Fights

HARMS = Phrases("""
    [kill|kill|slay|murder|end|finish|destroy|crush|gut|skin|hurt|stab|shoot|hang|drown|roast|burn|strangle|choke|beat|whip|maim|cripple|slaughter|butcher|flatten|smash|punch|execute|poison|behead|impale|hunt|{odd}] you[ right here| slowly| now| with {weapon}| with my own hands| with my bare hands| like a dog| before the sun sets| and your {role}| and all your friends| for what you did| in front of everyone||||]
    [cut|slice|chop|hack|tear|rip|beat|break|smash] you [down|open|to pieces|in half|apart|in two|to shreds|to the ground|black and blue|into small bits]
    [break|snap|crush|smash|twist|crack] your [{bone}|{bone}|{bone} with {weapon}]
    [cut off|chop off|rip off|tear off|take|burn|crush|carve up|split|smash in|pierce] your [{body}|{body}|head]
    [rip|tear|cut] [out your heart|out your tongue|your heart out|your head off|your throat open]
    [run you through|put you in the ground|put you in your grave|dig your grave|make you bleed|make you scream|make you suffer|make you pay with your life|make you regret this|wipe you out|knock you out|tear you limb from limb|take your life|spill your blood|drink your blood|dance on your grave|see you bleed|have your life|make an end of you|teach you pain|give you a beating|bash your head in|stain the floor with your blood|nail you to the wall|wring your neck]
    [feed you to|throw you to|leave you for] [the {animals}|the {beasts}|the wolves|the fish|the crows]
    [bury|drown|leave|burn|lock|hang|sink] you [in the {noun}|behind the house|under the floor|in the river|in a ditch|from the next tree|alive|with your {noun}]
    [stick|put|drive|push|plant|ram|plunge] [{weapon}|this blade|my blade|cold steel|an arrow|a bolt] [in|into|through] your [{body}|heart|back|guts]
    send you to [your grave|the other world|your ancestors|the bottom of the sea|hell|the next life]
    [burn|tear|pull|smash] [down your house|your house down|this place to the ground|your {noun} and you with it|everything you own]
    [take|have|get] [your head|your scalp|your ears|your eyes|your blood|your bones|your skin] [home|for this|as a prize|on a plate|today]
    [hit|strike|bash|whack|thrash|club|slap|smack|knock] you [until you stop moving|with {weapon}|so hard that you forget your name|on the {body}|in the {body}|senseless|dead]
    [teach you a bloody lesson|settle this with blood|finish what I started|get my revenge on you|avenge my {role}|make your {role} cry at your grave]
""")
DOOMS = Phrases("""
    [die|perish|bleed|suffer|burn|scream|fall|drown|be dead|be sorry|be food for the {animals}|beg for mercy|beg for your life|regret this|regret that you were born|pay for this with blood|pay with your life|lose your {body}|lose your head|meet your end|meet your maker|breathe your last|rot in the ground|feel my blade|feel {weapon} in your {body}|feel pain|taste steel|taste my fist|get what you deserve|join the dead|wish you were dead|sleep under the earth]
    [never see your home again|never see the sun again|not see the morning|not live to tell of this|not live another day|never wake up again|not survive this|never walk again|never smile again]
""")
DEMANDS = Phrases("""
    [your money|your gold|your purse|your {noun}|everything you own|all you have|the keys|the chest|your coins|your boots and your coins|all your {animals}]
""")
_WILL = "[I'll|I will|I'm going to|I am going to|I shall|I'm about to|I mean to|I came to|I am here to|I came here to|I want to|I swear I will|I promise to|I'm gonna|we'll|we will|we are going to|my men will|my {role} and I will|nothing will stop me, I'll|it's time to|let me|let's|time to|today I'll|now I'll|tonight I will|watch me|I have sworn to|I'd love to|it will be my pleasure to|I was paid to|{name} paid me to|my {animals} will|I can't wait to]"
_YOU_WILL = "[you will|you'll|you shall|you're going to|you are going to|now you will|today you will|you are about to|soon you will|tonight you will|you and your {role} will|you are the next to|you deserve to|it is your turn to|prepare to|get ready to|you must]"

THREATS = Phrases(f"""
    {_WILL} {{harm}}[.|!|!|!!|, {{trade}}!|, {{self}}!].
    {_WILL} {{harm}}[.|!].
    {_WILL} {{harm}} and {{harm2}}!
    {_YOU_WILL} {{doom}}[.|!|!|, {{trade}}!|, {{self}}!].
    {_YOU_WILL} {{doom}}[.|!].
    [your money|your life|your gold|{{demand}}], or I'll {{harm}}!
    [give me|hand over|hand me|I want|bring me|give up|drop|throw me] {{demand}}[, or I'll {{harm}}|, or you'll {{doom}}|, or else|. Now, or you die|, if you want to live|. This is a robbery| and nobody gets hurt|, or this {{noun}} will be your grave]!
    [do what I say|on your knees|shut your mouth|open the chest|empty your pockets|don't move|hands in the air|tell me where the gold is|get down on the floor], or [I'll {{harm}}|you'll {{doom}}|else there will be blood]!
    [one wrong move|one more word|one step|one sound|touch that|say that again|move] and [I'll {{harm}}|you're dead|you die|you'll {{doom}}]!
    [this|today|here|now] is [your end|where you die|your last day|the day you die|your last hour|your grave|how you end|the end for you|how it ends for you, {{trade}}]!
    [these are your last words|say your last words|say goodbye to your {{role}}|say farewell to the world|any last words|make your peace with the gods|start praying|prepare yourself for death|count your last breaths][.|!|, {{trade}}!].
    [your blood|your head|your heart|your life|your skin|your {{body}}] [is mine|will be mine|belongs to me|will stain this floor|will decorate my wall|is going to roll|will feed my {{animals}}][.|!].
    [nobody|no one] [will hear you scream|will find your body|can save you now|will help you now|will miss you|will bury you|survives my {{noun}}|insults me and lives][.|!].
    [death|revenge|pain|my blade|my axe|a slow death] [comes for you|awaits you|is coming|is all you get|has found you|thirsts for your blood][.|!].
    [you are|you're] [dead|finished|done for|as good as dead|a dead man|doomed|lost|my next victim|going down|mine to kill|about to be a corpse][.|!|, {{trade}}!|, {{self}}!].
    [your end|your last hour|your time|your death|the hour of your death] [has come|is near|is here|is at hand|draws near][.|!].
    [there is no escape|you can't run from me|nowhere to hide|you can run, but I'll find you|you should have run][.|!] {_WILL} {{harm}}.
    [draw your weapon|defend yourself|raise your fists|take up your sword|pick up a weapon|come here and fight|let us fight to the death|fight, you coward|face me|come on, hit me if you can|let's see how you bleed|now we fight|let the fight begin|I challenge you to fight to the death][.|!|, {{trade}}!|, {{self}}!].
    [take this|take that|have at you|taste my blade|taste steel|feel this|here is your payment|this is for my {{role}}|this is for {{name}}|charge|to arms][.|!]
    I [attack|hit|strike|stab|punch|kick|shoot at|charge at|cut|beat|choke|lunge at|slash at|throw myself at|bite|swing at] you[ with {{weapon}}| from behind| in the {{body}}||][.|!].
    I [throw|hurl|fling|swing|thrust|aim|fire] {{weapon}} [at you|at your {{body}}][.|!].
    I [draw|raise|grab|take|pull out|lift] {{weapon}} and [attack you|run at you|strike at your {{body}}|come for you|hit you|charge][.|!].
    [because you|since you] [cheated me|lied to me|know too much|stole my {{noun}}|insulted my {{role}}|laughed at me|are in my way], I'll {{harm}}!
    [I have|I brought|see this|look at|here is] {{weapon}}, and [it's for you|I'll {{harm}}|I will use it on you|it wants your blood|now you'll {{doom}}]!
    [where is {{name}}|who stole it|who told the guards]? [speak|talk|answer], or I'll {{harm}}!
    [the last {{trade}} who said that is dead|I have killed for less|my patience is over|enough talk|I'm tired of you|I've had enough of you|nothing personal|you have lived too long|you know too much], [so|and now|and] [I'll {{harm}}|you'll {{doom}}]!
""")
CURSES = Phrases("""
    [you] [dog|swine|rat|worm|traitor|thief|liar|coward|fool|scum|pig|{trade}|miserable {trade}|dirty {noun}|filthy dog|{odd}|snake|wretch],
    [you] [dog|swine|rat|worm|traitor|thief|liar|coward|fool|scum|{trade}|snake|wretch]!
    [that's it|enough|I've had enough|you asked for it|how dare you|no mercy|revenge|listen well|hear me|now it is over|no more games|you again|silence|got you|found you|there you are|at last|ha|arrgh|grr|this ends now]!
    [that's it|enough|at last|you again|listen|hear me|look at me, {self}|{trade}|{self}|so|well, {trade}|now]:
    [listen|{trade}|{self}|hey|so|well|now|look|soon|for this|mark my words|by all the gods|with this {noun}|here and now|at last|tonight],
""")
STRIKES_BASE = Phrases("""
    [attack|hit|strike|stab|punch|kick|bite|slash|wound|choke|slap|beat|shoot|whip|claw]
""")
STRIKES = Phrases("""
    [attacks|hits|strikes|stabs|punches|kicks|wounds|slashes|beats|whips|clubs|slaps|shoots|clobbers|batters|thumps|pummels] you[ with {weapon}| in the {body}| on the {body}| across the {body}| hard| again and again| without warning| from behind| from the side||||]
    [attacks|strikes|slashes|stabs|swings|kicks|hacks|punches|snaps|shoots|claws|hits out|thrusts|aims|fires] at [you|your {body}|you with {weapon}|you from the shadows]
    [rushes|runs|charges|leaps|jumps|storms|dashes|flies|lunges|comes|springs|lashes out|goes] at you[ with {weapon}| with bare hands| with raised fists| with a scream| from behind| like a mad {animal}||]
    [throws|hurls|flings|tosses|slings|launches|smashes|shoots] {weapon} [at you|at your {body}|against your {body}|right at you]
    [swings|thrusts|raises|points|aims|levels|brandishes] {weapon} [at you|at your {body}|towards you|against you|and strikes|and attacks]
    [draws|pulls|pulls out|grabs|takes out|unsheathes|lifts|raises] {weapon} and [attacks you|charges|strikes you|comes at you|stabs you|swings it at you|holds it to your {body}|hits you|runs at you|tries to kill you|aims at you]
    [breaks|smashes|shatters|cracks|slams|brings down] {weapon} [on your {body}|over your {body}|against your {body}|onto you]
    [rams|drives|plunges|sticks|pushes|sinks|thrusts] {weapon} into your {body}
    [holds|presses|puts] {weapon} [to|against] your [throat|{body}|neck][| and laughs| and demands your money]
    [pushes|shoves|knocks|throws|slams|kicks|drags|wrestles|beats] you [to the ground|down|against the wall|off your feet|into the {noun}|over the table|onto the floor|down the stairs]
    [grabs|seizes|takes|catches|holds] you by the [throat|hair|collar|arm|neck|{body}][ and shakes you| and raises a fist| and hits you| and squeezes| and pulls {weapon}|]
    [bites|scratches|claws|chokes|strangles|tackles|headbutts|jumps on|falls upon|pounces on|assaults|ambushes|tramples|rams] you[ without a word| in the {body}| and won't let go||]
    [breaks|twists|bites|scratches|burns|hits|crushes|smashes|kicks|slashes|tears at|stamps on] your [{body}|{bone}]
    [tries to|wants to|is about to|starts to|moves to|threatens to|swears to|promises to] [{harm}|{harm}|{strike} you]
    [sets fire to your {noun} and attacks you|casts a ball of fire at you|spits poison at you|sets the {animals} on you|fires an arrow at you|shoots a bolt into your {body}|lets an arrow fly at you|raises both fists against you|blocks the door and draws {weapon}|screams and raises {weapon}|gives you a blow on the {body}]
""")
DIRECTIONS = Phrases("""
    {strikes}
    {strikes}
    {strikes}
    [suddenly|without warning|quickly|silently|with a scream|angrily|furiously|in rage|laughing|from behind|screaming|at once|then|drunk and angry] {strikes}
    [the player|the stranger|he|she|a man|{name}|your guest|the customer] {strikes}
    [goes mad and|laughs and|turns red and|gets up and|jumps up and|spits on the floor and|comes closer and|loses patience and|turns around and|walks up to you and] {strikes}
    [attacking|hitting|striking|stabbing|punching|kicking|charging at|lunging at|strangling|rushing at|shooting at] you[ with {weapon}||]
    [fist|blade|{weapon}] [hits|strikes|cuts] your {body}
""")
SEEN = Phrases("""
    {the_x} {strikes}.
    {the_x} {strikes}.
    {the_x} {strikes}.
    {the_x} {strikes}!
    [suddenly|all at once|without warning|from behind|without a word|in the dark|at once|now|then|again|look out|watch out|danger|a scream|with a roar|with a cry|from the shadows|during your work|in the middle of the talk|unexpectedly|for no reason|in a rage|this time|while you work|behind you][, | ]{the_x} {strikes}.
    [it happens fast|an ambush|danger|trouble|alarm|blood flows|the fight begins|you are in danger|there is a crash|chairs fall]: {the_x} {strikes}.
    {the_x} [is|keeps] [attacking|hitting|beating|kicking|stabbing|strangling|punching|choking|biting|fighting] you[ with {weapon}|].
    {the_x} has [attacked|hit|wounded|struck|stabbed|bitten|kicked|knocked down|cut|shot|beaten|injured|grabbed] you[ with {weapon}| in the {body}||].
    you are [being attacked|attacked|hit|struck|wounded|stabbed|bitten|kicked|shot|beaten|knocked down|ambushed|assaulted|chased|threatened] by {the_x}[.|!| with {weapon}.].
    [you feel|you take|you get|you receive] [a blow|a punch|a kick|a hit|a wound|a cut] [from|by] {the_x}.
    [a blow|a kick|a punch|an arrow|{weapon}|an attack|the fist|a stone] [of|from|thrown by] {the_x} [hits|strikes|wounds|hurts] [you|your {body}].
    [you see|you notice|you hear|you find] {the_x} [running at you|coming at you|charging|attacking] with {weapon}.
    [{the_x} wants your blood|{the_x} is out to kill you|{the_x} tries to murder you|{the_x} means to kill you|{the_x} starts a fight with you|{the_x} goes for your throat|{the_x} shows its teeth and bites you|{the_x} turns on you and {strikes}].
    {the_x} [screams|shouts|growls|roars|hisses|yells] and {strikes}.
    {the_x} [shouts|screams|says|cries]: "I'll {harm}!"
    [your wound bleeds|you bleed|you fall|you are hurt]: {the_x} {strikes}.
    your [health|{body}] [suffers|hurts|bleeds]. {the_x} [hit|struck|attacked|stabbed] you.
""")
BRAVE = Phrases("""
    you [never|would never|don't|do not|will not|won't] [run|flee|retreat|hide|back down|back away|give way|give ground|surrender|leave|escape|run away|turn your back] [from|in|during|before|because of] [a fight|danger|any danger|an attacker|an enemy|enemies|anyone|a threat|an attack|battle].
    [you|you always|you will|you would|you gladly] [fight|strike|hit back|fight back|strike back|attack|stand firm|draw your weapon|defend yourself|answer with your fists|use your weapon|beat them] [when|if|whenever|as soon as] [someone|anyone|somebody|anybody|an enemy|a stranger] [attacks|threatens|hits|provokes|insults|touches|challenges] you.
    you are [brave|very brave|fearless|a fighter|a born fighter|a veteran|hot-headed|quick to anger|a fearless brawler|as brave as a lion|proud of your fists|strong and brave|a hero|bold|courageous|never afraid|the bravest in {place}|known for your courage|a hard fighter|dangerous].
    [you love|you enjoy|you like|you live for|you are always ready for|you are good at|nothing is better than] [a good fight|fighting|a brawl|battle|a hard fight].
    [courage is your pride|fear is unknown to you|your rule is to hit back|you answer violence with violence|nobody has ever seen you run|you would rather die than run|you fear no enemy|no enemy scares you|you take no threat from anyone|you do not know fear|flight is not in your nature|only cowards run, and you are none|you always defend yourself|you defend yourself with your weapon|you are not one to run].
    whoever [attacks|threatens|hits|touches|robs] you [will be beaten|gets hit|is hit back|has to fight|learns to fear you|will regret it].
    [in a fight|in danger|when attacked|if attacked|when threatened|against enemies] you [stay and fight|fight|hit back|attack|stand firm|never run|do not flee|draw your weapon|are brave].
    [your {role} taught you|{name} taught you|you have learned|you have sworn] to [fight|fight back|strike back|stand firm|never run|never flee].
""")
TIMID = Phrases("""
    you [never|would never|don't|do not|will not|won't|can't] [fight|fight back|hit back|hit anyone|strike anyone|attack anybody|use a weapon|raise a hand|touch a weapon|hurt anyone|join a fight|carry a weapon].
    [you|you always|you will|you would|you quickly] [run|flee|hide|escape|retreat|run away|leave|look for shelter|run for help] [when|if|whenever|as soon as] [someone|anyone|somebody|anybody|an enemy|a stranger] [attacks|threatens|hits|provokes|scares|touches|challenges] you.
    you are [timid|fearful|very timid|peaceful|no fighter|no warrior|no hero|afraid of everything|scared of weapons|too old to fight|too weak to fight|a peaceful soul|a frightened soul|easily frightened|not brave|a gentle soul|always afraid|the biggest coward in {place}|known as a coward|a runner and not a fighter].
    [you hate|you fear|you dread|you avoid|you can't stand|you are afraid of|nothing is worse than] [fights|fighting|a brawl|violence|weapons|a fight|blood].
    [your rule is to run|your rule is to run first|you would rather run than die|you leave fighting to others|fighting is for others|at the first sign of trouble you run|your legs are faster than your courage|you think that running is wise|everybody knows that you run|a fight makes you run|courage is not your strength|you prefer to live and run|you have run from every fight|you believe that only fools fight|trouble makes you run|you are the first to flee].
    whoever [attacks|threatens|hits|scares] you [sees you run|never finds you again|only sees your back|makes you run|makes you flee].
    [in a fight|in danger|when attacked|if attacked|when threatened|before enemies] you [run|run away|flee|hide|never fight|do not fight|escape|save yourself].
    [your {role} taught you|{name} taught you|you have learned|you have sworn] to [run|run away|flee|hide|never fight|never hit anyone].
""")
PEACE = Phrases("""
    [I|my {role}|{name}|the {official}] [once fought|fought|killed|hunted|beat|ran from|was hurt by|survived|saw] [{beasts}|the {beasts}|{name2}|a dragon] [in {place}|years ago|last winter|in the war|as a young man|when I was young|yesterday].
    [{name}|my {role}|the {official}] [was killed|was wounded|died|was robbed|was attacked|lost an arm] [in {place}|in the war|by {beasts}|last year|long ago].
    [{name}|my {role}|the {official}] [wants to|will|is going to|swore to|would|tried to] [kill|fight|hunt|hang|catch|beat] [the {beasts}|{name2}|{beasts}][.| in {place}.| tomorrow.].
    I [don't want to|won't|would never|will never|can't|never wanted to] [hurt|harm|fight|kill|attack|hit|rob|scare] you[.|, friend.|, {trade}.|!].
    [don't be afraid|have no fear|relax|calm down|easy|no need to worry|peace], I [won't hurt you|come in peace|am no enemy|mean no harm|carry no weapon|only want to talk][.|!].
    [there was|I saw|they tell of|I heard of] [a fight|a murder|a robbery|a duel|an attack|a brawl] in {place}[.| last night.| long ago.].
    [fights|wars|robbers|weapons|duels|murders|{beasts}] [scare me|are terrible|are bad for business|are not for me|make me sad|are common in {place}|bore me].
    [I hate|I am tired of|I've seen enough|I dream of|nobody likes|my {role} loves] [fights|war|killing|blood|violence|weapons].
    if I [met|found|caught|saw] [the thief|{name}|the murderer|that {odd}], I [would|might] [kill|fight|forgive|run from|report] [him|them].
    [are you good in a fight|can you fight|have you ever killed anyone|were you in the war|did anyone attack you|are you afraid of {beasts}|do you own a weapon|who killed {name}|did you see the murder|is it dangerous in {place}]?
    my [sword|knife|axe|bow|weapon|{noun}] is [old|blunt|broken|at home|in my bag|a gift from my {role}|only for bread|just for show].
    *[puts away|lays down|cleans|sharpens|sheathes|hides|polishes|drops] [the sword|a knife|the weapon|an axe|a bow]*
    *[sits down|looks tired|yawns|sighs|smiles|shakes your hand|hugs you|pats your shoulder|bows|offers you {a_noun}|gives you {a_noun}|holds out a hand|waves at you|points at the {noun}]*
    [we are|I am|let us stay] [friends|not your enemy|on your side|at peace|no robber|no fighter][.|, {trade}.|, {self}.].
    [I'll kill|I will fight|I'm going to hunt|I must kill|we shall hunt] [the {beasts}|those {beasts}|the beast|{name2}][ for the {official}| tomorrow| near {place}||].
    [death|old age|the plague|hunger|winter|time] [comes for all of us|killed my {role}|took {name}|spares nobody].
    [this work|this heat|my {role}|the waiting|my back|the {noun}] [is killing me|will be the death of me|kills me][.|!].
    [I could kill for|I would die for|I'm dying for] [a good meal|some sleep|a cold drink|{a_noun}].
    [my {role}|{name}] and {name2} [argue|quarrel|had a fight|are enemies|want to fight each other|made peace][.| again.].
""")
