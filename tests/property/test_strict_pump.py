"""A strict pump meets any events in any order: no message overtakes one of its own session.

All that the other pump meets, and more: the syphon is killed and another starts while the locks of
the first still run, somebody else locks or settles messages, a survey fails. The world checks at
each send that nothing of the session that was stored before is still to come.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.property.test_pump import PumpMachine


class StrictPumpMachine(PumpMachine):
    """Every event, with sessions that must keep their order."""

    strict = True

    @rule(stored=st.booleans(), carried_out=st.booleans())
    def crash(self, stored: bool, carried_out: bool) -> None:
        self.world.crash(stored=stored, carried_out=carried_out)

    @precondition(lambda self: self.world.queue)
    @rule(data=st.data())
    def steal(self, data: st.DataObject) -> None:
        self.world.steal(data.draw(st.sampled_from(sorted(self.world.queue))))

    @precondition(lambda self: self.world.queue)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.world.remove(data.draw(st.sampled_from(sorted(self.world.queue))))

    @precondition(lambda self: self.world.surveys)
    @rule(failed=st.booleans())
    def answer_survey(self, failed: bool) -> None:
        self.world.answer_survey(failed=failed)

    @rule()
    def pause(self) -> None:
        self.world.perform(self.world.pump.pause(self.world.now))

    @rule()
    def resume(self) -> None:
        self.world.perform(self.world.pump.resume(self.world.now))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.perform(self.world.pump.resume(self.world.now))
        super().teardown()


TestStrictPump = StrictPumpMachine.TestCase
TestStrictPump.settings = settings(stateful_step_count=50)
