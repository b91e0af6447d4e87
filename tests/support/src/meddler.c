/* A module for tests: whenever a key leaves its name it calls the command that it was loaded with.
 * The few functions that it needs are declared here, as a module may. */
#include <stddef.h>
#include <string.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*SubscribeToKeyspaceEvents)(Context *, int, int (*)(Context *, int, const char *, String *));
static Reply *(*Call)(Context *, const char *, const char *, ...);
static void (*FreeCallReply)(Reply *);
static const char *(*StringPtrLen)(const String *, size_t *);
static void (*RetainString)(Context *, String *);

static String *words[16];
static int number;

static int told(Context *ctx, int type, const char *event, String *key) {
    (void)type, (void)key;
    if (strcmp(event, "rename_from") != 0) return 0;
    Reply *reply = Call(ctx, StringPtrLen(words[0], NULL), "v", words + 1, (size_t)number - 1);
    if (reply) FreeCallReply(reply);
    return 0;
}

int RedisModule_OnLoad(Context *ctx, String **argv, int argc) {
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    get("RedisModule_SetModuleAttribs", &SetModuleAttribs);
    get("RedisModule_SubscribeToKeyspaceEvents", &SubscribeToKeyspaceEvents);
    get("RedisModule_Call", &Call);
    get("RedisModule_FreeCallReply", &FreeCallReply);
    get("RedisModule_StringPtrLen", &StringPtrLen);
    get("RedisModule_RetainString", &RetainString);
    SetModuleAttribs(ctx, "meddler", 1, 1);
    for (number = 0; number < argc && number < 16; number++) {
        RetainString(NULL, argv[number]);
        words[number] = argv[number];
    }
    /* Class g: commands that are of no type. */
    return SubscribeToKeyspaceEvents(ctx, 1 << 2, told);
}
