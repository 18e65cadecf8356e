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
        24082612780052603u,  38677521181234402u,  28107952900970890u,  79125266667929734u,  145622634925841755u,
        189708695834765410u, 53704580248134400u,  128923811281453680u, 57478151391292066u,  90219174265463672u,
        67000278011948611u,  37931191717945754u,  41878201303646560u,  49518180934148384u,  57754855363775193u,
        38078311230605552u,  69775041822839680u,  2810507891864038u,   3003883861916208u,   60274936421354195u,
        100416214056154306u, 69783968685871640u,  10893986013237526u,  39252949578351328u,  180571161602898208u,
        90806485080083768u,  94048053581320327u,  66997778909043243u,  97994302835696017u,  152704619419053914u,
        92693229350269056u,  74700440960449180u,  39745549567702954u,  17306059565612922u,  7731429039487876u,
        44429091532766594u,  192425708745848u,    162635378107903682u, 3880200802726001u,   79345725552845095u,
        3875798998151271u,   54510842744432489u,  169031250165142176u, 41307605066413379u,  38571979465053411u,
        61053757538547696u,  37291055804115777u,  34800263172761700u,  72833022918963177u,  57923393101525057u,
        41312003381359936u,  79345167207096639u,  75058170438883526u,  1536285936372558u,   89811985964841095u,
        23591172415053227u,  93983116613762803u,  77934692409998140u,  8307086793782516u,   100711995997266087u,
        39024741323256071u,  102718093053659009u, 31284429511090423u,  105241894078332004u, 100416384389055396u,
        17000634864018556u,  17387069904853411u,  58629277226131902u,  63902851458879699u,  42651933245047844u,
        31144311639227268u,  56231595115516820u,  58623306844221315u,  22768789431489476u,  30928281058819188u,
        39024741323256068u,  68372520688875395u,  61842045916052842u,  51008574088235018u,  91648173487125914u};
    (void)state;
    REQUIRE_GPU();
    check(numbers, sizeof numbers / sizeof numbers[0]);
}

/* Tiles without asynchronous copies have code of their own. */
static void numbers_of_tiles(void **state) {
    static const uint64_t numbers[] = {4997289844275678u, 64753619177932725u, 65384956521638318u};
    (void)state;
    REQUIRE_GPU();
    check(numbers, sizeof numbers / sizeof numbers[0]);
}

/* Long rows without clusters have code of their own. */
static void numbers_of_longer_rows(void **state) {
    static const uint64_t numbers[] = {15763158459334771u, 47129578317057883u, 26714908545103700u,
                                       24254559178200891u, 6301384018522260u,  44227271212757659u};
    (void)state;
    REQUIRE_GPU();
    check(numbers, sizeof numbers / sizeof numbers[0]);
}

/* Many rows of a multiprocessor. */
static void many_numbered_rows(void **state) {
    static const uint64_t numbers[] = {62069655510187233u, 103377753214595079u, 7117159369129491u,  36923154672713602u,
                                       13872550530525846u, 90514692912555361u,  74837721977453087u, 100438204288709827u,
                                       50777658778480767u, 81677787198565319u,  76424871940530791u, 62264249858293090u,
                                       17306059565610850u};
    (void)state;
    REQUIRE_GPU();
    check(numbers, sizeof numbers / sizeof numbers[0]);
}

int run_coverage_number_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_rows_and_columns), cmocka_unit_test(numbers_of_tiles),
                                       cmocka_unit_test(numbers_of_longer_rows), cmocka_unit_test(many_numbered_rows)};
    return cmocka_run_group_tests_name("coverage by numbers", tests, NULL, NULL);
}
