"""Rows about laws that a correct training step obeys: the contract between observers and HC231 to HC235, and HC308.

Rows of phase `optimizer`, written by hypocenter.session.observers (between, audit, by_rule). A step in which the books
balance writes none but the first.

    site `laws`, port `balanced`          n entries were looked at by the law named in `module`, sum of them balanced
    site <parameter>, port `changed`      between the update before and this one, n elements of a sample were looked
                                          at and sum of them changed; `module`: "value", or the name of the optimizer's
                                          state. `op`: "gone" for state that is not there any more; `call`: how many
                                          steps ago that was. `source`: the line that wrote to it, where one was seen
    site `group[N].<option>`, port `changed`, module `option`: an option of an optimizer's group, as it is now; `op`: as
                                          the update before had it; `call` as above
    site <parameter>, port `changed`, module `state`: the first parameter of an optimizer that begins without state,
                                          although another one with state has updated it for long; n: its parameters
    site <module>.<name>, port `carried`  what a step begins from there is what calls without gradients or in evaluation
                                          have left, the first of them at `source`; so many steps before began with what
                                          the step before them had left; `module`: the class; `names`: the loss of the
                                          first micro-batch, and with what the step before had left
    site <parameter>, port `changed`, module `copy`: a weight in whose place an optimizer updates a copy was not what
                                          that copy had become at some looks in a row: the share of those looked at;
                                          `call`: how many steps ago that began
    site <parameter>, port `unbalanced`, module `another`: the gradient that such a copy is given has nothing to do with
                                          that of the weight: the cosine; `call` as above
    site <parameter>, port `changed`, module `bit`: of all its n elements one alone has another sign or exponent, and
                                          nothing else; `op`: which, and from what to what
    site `laws`, port `changed`           of all tensors of that kind (`module`) that were looked at: n, sum of them
                                          changed
    site <parameter>, port `unbalanced`   what the optimizer is about to use, by what the micro-batches give when they
                                          are done again: the factor between the two. `module`: how it is off (below);
                                          `op`: for "a micro-batch" its number; `call`: steps before, in which it
                                          balanced

    site <parameter>, port `not_by_rule`  what the step of the optimizer (`op`) has left is not what its rule makes:
                                          `module`: "value", or the name of its state; the number: what was added to
                                          the weight over what the rule adds, NaN where it is no multiple; `call` as
                                          above. `source`: a hook of the program around that step, if there is one;
                                          `names`: the form of the rule, where its first steps alone tell it
    site `laws`, port `not_by_rule`       `module` "each parameter": the optimizer `op` corrects the bias of its means
                                          by a step that it counts once for each of so many parameters; `call`: how
                                          many steps ago that was first seen
    site <parameter>, port `overlaps`     at `call` updates its state `module` in the optimizer `op` lay in the memory
                                          of a gradient; the number: how many parameters are like it
    site `laws`, port `unbalanced`        the same factor for all gradients, where neither the loss scale nor a clip
                                          to a norm makes it; `call` as above. `module` `not divided`: the loss of
                                          each micro-batch is a mean, and the Trainer (in `names`) adds so many up;
                                          `call`: how many steps ago that was first seen
    site `laws`, port `not_repeated`      a micro-batch that is done again comes to another loss than in the run: the
                                          number is how many times as far as may be, `call`: replays before
    site <module>, port `unwritten`       the operator `op` at `source` reads memory that `module` gave (`names`: the
                                          line) and nobody had written: filled with NaN before, it changes the result;
                                          the number 0: so it does with numbers, and `op` is what gave the memory
    site `laws`, port `not_consumed`      calls of a model in training, in this step, that no backward went through;
                                          `module`: the model; `call`: audited steps before, in which there was none
    site <parameter>, port `no_gradient`  it had a gradient at each of the first updates, and has had none for so many;
                                          `module`: "frozen" where it does not ask for one any more, "not called"
                                          where its module is not called any more, "replaced" where another one, which
                                          asks for no gradient, is in its place
    site `laws`, port `no_gradient`       `module` "all": all gradients of an optimizer, `call` of them, were 0 at each
                                          of its first updates, so many
    site <parameter>, port `never_used`   it had no gradient at any of the first updates (so many), and `module`, its
                                          like in another layer, had; `call`: how many parameters are such; `names`: so
                                          often the layer of `module` is called, as are all of these layers together
    site <parameter>, port `cut_off`      what is computed from it comes to the loss as before, but no gradient comes
                                          back on one way more than ever before. `names`: the modules in which values
                                          come without one; the number: how many parameters are like it, `call`:
                                          audited steps before
    site <parameter>, port `never`        an optimizer holds it, and no gradient has come to it at any of the first
                                          `call` audited steps, though what is computed from it comes to the loss at
                                          each; `names`, `op`: where values come without theirs; the number as above
    site `laws`, port `constant`          a term of the loss is made of gradients that were taken without a graph, in
                                          `module` at `source`, and brings no gradient itself
    site `laws`, port `counted`           a term of the loss is made of the indices or truth values alone that `op` gave
                                          in `module` at `source`, at each of the first audited steps, so many
    site <parameter>, port `not_stepped`  it has a gradient, no optimizer has held it for so many steps, and it has not
                                          moved; `module`: a parameter of the same module that one does hold, its own
                                          name where one holds another tensor of this name, "another tensor" where one
                                          holds one of its shape that has no gradient and is in no model, "nothing"
                                          where the optimizer that steps has a gradient for none of its own (`op`: its
                                          class, where it had one for the parameter in `names` before), "in a
                                          container" where it lies in a list or dict (`op`) of a module, "made in
                                          forward" where each forward makes another one of this name, or empty;
                                          `call`: how many are like it
    site <module>, port `in_evaluation`   it has made the losses of so many updates in a row in the mode of evaluation;
                                          `module`: "returned" where it was in that of training before; `call`: how
                                          many modules in it do something else then
    site `laws`, port `of_another`        at so many micro-batches in a row the loss compared what the model computed
                                          with labels that were made of what it was given `call` micro-batches before;
                                          `source`: where
    site `laws`, port `clipped_in_vain`   at the first updates that saw clips, all of these came when nothing was there
                                          to be used, or, with `module` "nothing", had a gradient; or with "thrown_away"
                                          their results were not used; `call`: how many gradients were used
    site `laws`, port `state_lost`        so many times in a row a new optimizer (`module`: its class) has taken over
                                          parameters without the state of the one before
    site <parameter>, port `state_of_another`  an optimizer begins with a state `module` of it that was the state `op`
                                          of the parameter in `names` when it was saved; `op` "": of none, and far from
                                          what it was; the number: how many like it
    site <parameter>, port `clipped_in_part`  so many gradients, this one among them, were used at each of them and not
                                          clipped, others were; `call`: how many were used; `module` "once whole": at
                                          the updates before, none was left out
                                          Of these rows `names` holds the first step, where clips were made otherwise
                                          at updates before it
    site `laws`, port `clipped_early`     at the first updates that saw clips, some acted before more was added to what
                                          they had clipped: `module` "micro-batches" or "ranks"; `call` as above
    site `laws`, port `clipped_each`      so many clips of parameters that no two have in common made each of them
    site <module>, port `inexact`         the result of the operator `op` at `source` is that far from what exact
                                          arithmetic gives (L2 norm of the difference over that of the result);
                                          `module`: the operator where that began, `names`: how far its operands are,
                                          the format of that operator's result, and its line where that is another
    site <module>, port `wrapped`         so many of `call` whole numbers that the operator `op` gives have wrapped
                                          around in their format; with "indices" in `names`: of those that it looks up,
                                          so many came through a format (`dtype`) that has no neighbours of them

Of jobs of several ranks, phase `grad`, on every rank:

    site <parameter>, port `grad_made`    a sketch of what the micro-batches of this rank give when they are done again
                                          (SKETCH numbers), the loss scale taken out where the program did so; `sum`
                                          tells the parameter's values from others; `module`: "together" where the
                                          model computes over ranks, and all of them did it again
    site <parameter>, port `grad_used`    the same of what the optimizer is about to use, where this rank updates it;
                                          `call`, in both: the group of the optimizers that holds it, counted over all
    site <parameter>, port `grad_part`    as `grad_made`, of one micro-batch of several: at the first audited steps
    site `labels`, port `grad_made`       so many labels (n) counted in the cross-entropies of this rank's step;
                                          sum: what all of them weigh in its losses, the loss scale taken out

    site `laws`, port `used_twice`        `module` "loss": two backward passes of this step began at the same loss, that
                                          of micro-batch `op`; "gradients": the update uses the gradients of the one
                                          before, with no backward pass between; `call`: updates before without that
    site `laws`, port `thrown_away`       so many micro-batches before this update are not in it, although their losses
                                          and gradients are no larger than those that were used; `call`: how many are.
                                          `module` "always": so it is from the first step on
    site `laws`, port `not_used`          at the end: so many backward passes were made since the last update; `call`:
                                          how many there were for an update before

How a gradient is off:

    missing           the optimizer is given none, or zeros
    factor            it is a multiple of the right one, and those of most parameters have another factor
    the step before   the gradient of the step before is still in it
    a micro-batch     one micro-batch counts for more or less than the others
    other             something else
    in accumulation   (site `laws`) it is set to zero at every so many updates only; `call`: how many steps ago it held
                      that of the step before
    too many          (site `laws`) so many micro-batches by the number, `call`, that each loss is divided by; `op`: how
                      many steps ago
    held back         (site `laws`) accelerate divides each loss by `op`, and holds updates back until as many are added
                      up; it is made of one of them all the same; `call`: how many steps ago that was first seen
    twice             (site `laws`) it is divided by the number of micro-batches, `op`, more than once; the number:
                      how small it is by that; `call`: how many steps ago that was first seen
    site `laws`, port `same_draws`        at so many steps that were looked at (the number) torch's generators began
                                          where they had before, and numbers were drawn from there
    site `laws`, port `draws_again`       so many steps in a row, the last of which this is, torch's generator of the
                                          device `module` began each where it had `call` steps before; `source`: where
                                          the program has seeded before the first of them
    site <parameter>, port `alike`        all rows of this weight are equal, and so are those of its gradient; the
                                          number: how many weights are like it
    site <parameter>, port `not_loaded`   `load_state_dict` at `source` left it as it was, and put the value `module` of
                                          the same shape, whose name ends alike, nowhere; the number: how many like it
    site <parameter>, port `written_over`  it and so many of `call` in all that `load_state_dict` at `source` had put
                                          values into are something else at the first update
    site <parameter>, port `not_brought_back`  so many of `call` that `load_state_dict` at `source` was given lie where
                                          its own lie, and have changed since `state_dict` gave them
    site <module>.<name>, port `not_saved`  no checkpoint holds it, nothing has set it since `load_state_dict` at
                                          `source` put another model's weights here, and with the value that it had
                                          there the loss of the last micro-batch is another; the number: how many are
                                          like it; `module`: "buffer" or "attribute"; `names`: its value there and here
                                          (of the first element that differs), the loss here, and with all values of
                                          there
    site `laws`, port `same_order`        so many passes in a row the sampler `module` has drawn the order of the first
    site <parameter>, port `two_hands`    at updates in a row, which began so many steps ago, two optimizers (`op`) have
                                          moved it by the same gradient; `call`: how many are like it
    site <parameter>, port `cancelled`    its gradient was exactly 0 at each of the first updates of its optimizer, the
                                          sum of so many that are not; `call`: how many are like it
    site `laws`, port `piled`             at so many updates in a row the gradients that are used hold those which were
                                          there when the optimizer `module`, of other parameters, made its own;
                                          `op`: their share, where the first update was made without them and another
                                          line's backward has left them; `names`: the first of those looked at, and the
                                          largest cosine of both parts; "": not known
    site `laws`, port `alike_workers`     in each of so many workers of a loader `module` draws the same random numbers
    site <parameter>, port `frozen_moves`  it was trained, does not ask for a gradient any more, has none but 0 or
                                          (`op` "old") the one it had before, and updates of the optimizer `module`
                                          have moved it, at two looks of which the first was `call` steps before; so
                                          many like it are frozen; `names`: the last look at which none was
    site <parameter>, port `frozen_written`  no optimizer holds it, trained ones are beside it, and it has changed
                                          since the last look, after so many (the number) between which it stayed;
                                          `source`: the line that wrote to it, where one was seen
    site <module>, port `unmeasured`      a norm whose statistics are those it was made with, though it was called in
                                          training (`module` "training", the number: its momentum), or though its own
                                          weight has changed ("evaluation")
    site <module>, port `moved`           a norm that was called in the mode of training so many times more than is the
                                          rule (`module`) between two updates of its weight; `call`: the step at which
                                          that was so before
    site <parameter>, port `away`         an average of the weights (`module`) went away from this one, its source, at
                                          each of its first moves: so many times the way between them (negative)
    site <parameter>, port `elsewhere`    what an average holds under this name goes to the parameter `op` in place of
                                          it, so much of the way at an update
    site <parameter>, port `left_behind`  an average leaves it as it was, and moves others so much of their way
    site <parameter>, port `far_away`     at its first update an average has nothing to do with its source: the cosine
                                          of the angle between the two
    site <parameter>, port `forgets`      an average goes so much of the way to its source at each update, but not all
    site <parameter>, port `own_average`  the program has averaged it with itself before so many updates: the average
                                          and the weight are one memory; `call`: so many parameters the last time;
                                          `op`: how many steps before that the first one was
    site <parameter>, port `own_copy`     before this update other values were copied over it, a model was called, and
                                          it was copied over itself; the number: so many parameters like it
    site <parameter>, port `own_reference`  the reference of the Trainer `op`, of class `module`, lies in its memory;
                                          the number: in that of how many; `call`: the step that first saw it
    site <parameter>, port `untied`       it and the parameter in `names` were one when the optimizer of step `call`
                                          made its first update, and are two with the same values; the number: how
                                          many like it; `module`: "said" where the model says that they are one,
                                          "may be meant" where a program may have parted them on purpose
    site <parameter>, port `joined`       nothing trains it, and since a look `call` steps before it lies in the memory
                                          of the one in `names`, which is trained, at two looks; at the step that
                                          `names` holds next, in one of its own; the number: how many like it
    site <input>, port `given_changed`    so many of `call` elements that were looked at of what micro-batch `op` was
                                          given were others when its backward was over, which needed them; no
                                          operation of torch had written to it; `module`: where it was given; `names`:
                                          who has, where that is known
    site <module or parameter>, port `hung_twice`  one hook (`op`, at `source`) hangs there `call` times (`module`: its
                                          kind); with one of them alone the gradient of the parameter in `names` is
                                          another one: the difference over its norm
    site `laws`, port `data_set`          the data set, or collate function, `module`, written at `source`, breaks the
                                          law `op` ("read only", "one by one", "together") at so many of `call` samples,
                                          or "all of it": so many batches are skipped again, in pass number `call`;
                                          `names`: the step at which it was asked, the field, another one that is
                                          parted from it, the indices of the samples, and "proven" or "likely"
    site <parameter>, port `changed_after`  its gradient was another one after each of so many updates (the number) than
                                          in them, and then no update used it
"""

from __future__ import annotations

SITE = "laws"
USED_TWICE, NOT_USED, THROWN_AWAY = "used_twice", "not_used", "thrown_away"
BALANCED, CHANGED, UNBALANCED = "balanced", "changed", "unbalanced"
CUT_OFF, NEVER, CONSTANT = "cut_off", "never", "constant"
NEVER_USED = "never_used"
NOT_CONSUMED, NO_GRADIENT, NOT_STEPPED = "not_consumed", "no_gradient", "not_stepped"
MADE, PART, USED = "grad_made", "grad_part", "grad_used"
LABELS, TOGETHER = "labels", "together"
UNWRITTEN = "unwritten"
NOT_REPEATED = "not_repeated"
NOT_BY_RULE, OVERLAPS, EACH_PARAMETER, NO_AVERAGE_OF = "not_by_rule", "overlaps", "each parameter", "no average"
SKETCH = 16  # numbers
BETWEEN, GRADIENT, UPDATE = "between", "gradient", "update"  # laws
TOO_MANY, NOT_DIVIDED, IN_ACCUMULATION, HELD_BACK = "too many", "not divided", "in accumulation", "held back"
MISSING, FACTOR, STEP_BEFORE, MICROBATCH, OTHER, TWICE = (
    "missing",
    "factor",
    "the step before",
    "a micro-batch",
    "other",
    "twice",
)
SCALED = "scaled"  # by the number `op` by which the loss is multiplied
OPTION, STATE, BIT, CARRIED = "option", "state", "bit", "carried"
COPY, ANOTHER = "copy", "another"
INEXACT, WRAPPED, INDICES = "inexact", "wrapped", "indices"
CLIPPED_IN_VAIN, CLIPPED_IN_PART, STATE_LOST = "clipped_in_vain", "clipped_in_part", "state_lost"
CLIPPED_EARLY, CLIPPED_EACH = "clipped_early", "clipped_each"
WHOLE = "once whole"
IN_EVALUATION, RETURNED = "in_evaluation", "returned"
WRITTEN_OVER, NOT_BROUGHT_BACK, NOT_SAVED = "written_over", "not_brought_back", "not_saved"
PILED, TWO_HANDS, COUNTED, CANCELLED = "piled", "two_hands", "counted", "cancelled"
ALIKE_WORKERS, DRAWS_AGAIN = "alike_workers", "draws_again"
SAME_ORDER, FROZEN_MOVES, UNMEASURED = "same_order", "frozen_moves", "unmeasured"
STATE_OF_ANOTHER = "state_of_another"
MOVED, FROZEN_WRITTEN, FROZEN_STATISTICS = "moved", "frozen_written", "frozen_statistics"
MUCH = 0.5  # of the usual size of what a norm gives: two rows a channel, momentum 0.1, move it by a third at random
OF_ANOTHER = "of_another"
SAME_DRAWS, ALIKE, NOT_LOADED, CHANGED_AFTER = "same_draws", "alike", "not_loaded", "changed_after"
JOINED, DATA_SET, ALL_OF_IT = "joined", "data_set", "all of it"
GIVEN_CHANGED, UNTIED, HUNG_TWICE = "given_changed", "untied", "hung_twice"
AWAY, ELSEWHERE, LEFT_BEHIND, FAR_AWAY = "away", "elsewhere", "left_behind", "far_away"
FORGETS, SAID, MEANT = "forgets", "said", "may be meant"
OWN_AVERAGE, OWN_COPY, OWN_REFERENCE = "own_average", "own_copy", "own_reference"
ALWAYS, OLD = "always", "old"
STRANGER = "another tensor"
NOTHING = "nothing"
HIDDEN, MADE_ANEW = "in a container", "made in forward"
GONE, FROZEN, NOT_CALLED, MERGED, ALL = "gone", "frozen", "not called", "merged", "all"
TIMES_NOTHING, REPLACED = "times nothing", "replaced"  # reasons for no gradient
