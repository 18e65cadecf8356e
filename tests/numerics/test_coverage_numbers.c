/* Coverage of cross-entropy by cases that a search over numbers has found, each for code that no other test executes.
 * numbered_cases.h says how a number is read. A case stays valid when the kernels change, but may lose its use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "numbered_cases.h"
#include "suites.h"

static void check(const uint64_t *numbers, size_t count) {
    size_t i;
    for (i = 0; i < count; i++)
        numbered_test(numbers[i]);
    test_done();
}

/* Rows and columns of every schedule. */
static void any_rows_and_columns(void **state) {
    static const uint64_t numbers[] = {
        24079314245165171u,  38677521181234402u, 9108281505074665u,   69351361786991602u, 90219174265463648u,
        67000278011948611u,  37931191717945754u, 100416214056154306u, 57478151391292066u, 38678073881449714u,
        90219174265463672u,  2810507891864038u,  3003883861916208u,   60274936421354195u, 69775041822839680u,
        41878201303646560u,  81430383366963217u, 88610216773537057u,  97994302835696017u, 7731429039487876u,
        69783968685871640u,  57754855363775193u, 74700440960449180u,  48066504528354270u, 66997778909043243u,
        57923393101525057u,  192425708745848u,   3880197044629607u,   39745549567702954u, 41307605066413379u,
        94048053581320327u,  17306059565612922u, 89811985964841095u,  38571979465053411u, 75058170438883526u,
        61053757538547696u,  32779622080963825u, 48774475394662759u,  75061917320918985u, 93983116613762803u,
        4997289844275678u,   81677787198565319u, 34800263172761700u,  23591172415053227u, 97088552411605747u,
        71157154714789863u,  11860444142956895u, 71743132202480633u,  8307086793782516u,  100416384389055396u,
        102718093053659009u, 17387069904853411u, 31144311639227268u,  72833022918963177u, 31214611663928220u,
        63902851458879699u,  58623306844221315u};
    (void)state;
    REQUIRE_GPU();
    check(numbers, sizeof numbers / sizeof numbers[0]);
}

int run_coverage_number_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_rows_and_columns)};
    return cmocka_run_group_tests_name("coverage by numbers", tests, NULL, NULL);
}
